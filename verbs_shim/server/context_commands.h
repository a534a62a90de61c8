// What the files that handle a context's commands share: engine commands sent, responses made.
//
// For context*.cpp only. Control thread only.
#pragma once

#include <rdma/ib_user_verbs.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "verbs_shim/server/context.h"

namespace roci::shim {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}

// A struct of the ABI with every byte zero, padding too.
template <class T>
T zeroed() {
  T value;
  std::memset(static_cast<void*>(&value), 0, sizeof value);
  return value;
}

[[nodiscard]] inline MmapInfo mmap_info(const ContextMemory::Area& area) {
  return {area.offset, static_cast<std::uint32_t>(area.bytes), 0};
}

template <class Body, class Undo, class Then>
void Context::run(const Request& request, Body&& body, Undo undo, Then then) {
  host_.submit(
      shard_, {id_, std::forward<Body>(body)},
      [self = shared_from_this(), request, undo = std::move(undo), then = std::move(then)](Reply&& reply) {
        if (self->closed_) return self->host_.fail(request.to, std::errc::no_such_device);
        if (reply.error == std::errc{}) return then(request, std::move(reply));
        undo();
        self->host_.fail(request.to, reply.error);
      });
}

template <class Body, class Then>
void Context::run(const Request& request, Body&& body, Then then) {
  run(
      request, std::forward<Body>(body), [] {}, std::move(then));
}

template <class Body>
void Context::run(const Request& request, Body&& body) {
  run(request, std::forward<Body>(body), [this](const Request& done, Reply&&) { answer(done); });
}

template <class Response>
void Context::answer(const Request& request, const Response& response, std::span<const std::byte> driver) {
  answer_with(request, request.call.response(bytes_of(response), driver));
}

// The legacy response is the beginning of the extended one.
template <class Response>
void Context::answer_as_long_as_asked(const Request& request, Response response,
                                      std::span<const std::byte> driver) {
  const std::size_t core = std::min(sizeof response, request.call.core_capacity_bytes());
  response.response_length = static_cast<std::uint32_t>(core);
  answer_with(request, request.call.response(bytes_of(response).first(core), driver));
}

}  // namespace roci::shim
