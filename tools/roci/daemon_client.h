// A connection of `roci` to the daemon: admin requests, and the lifeline.
//
// Errors are sentences for the user. Requests are answered one at a time. Single thread.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

#include "proto/result.h"

namespace roci::tools {

using Json = nlohmann::ordered_json;  // tables keep the daemon's order of columns
template <class T>
using OrError = proto::Result<T, std::string>;

class DaemonClient {
 public:
  // Nobody listens there: has_value() false and error() empty.
  [[nodiscard]] static OrError<DaemonClient> connect(const std::string& socket_path);
  DaemonClient(DaemonClient&& other) noexcept;
  DaemonClient& operator=(DaemonClient&& other) noexcept;
  DaemonClient(const DaemonClient&) = delete;
  DaemonClient& operator=(const DaemonClient&) = delete;
  ~DaemonClient();

  // `passed_fd` goes along, and stays the caller's.
  [[nodiscard]] OrError<Json> request(const Json& request, int passed_fd = -1);
  // From now on this connection keeps the daemon alive, and nothing else. False: the daemon is about to end,
  // or gone.
  [[nodiscard]] bool become_lifeline();
  // Readable or hung up, once the daemon is gone.
  [[nodiscard]] int fd() const { return fd_; }
  // The connection stays open, and is the caller's.
  [[nodiscard]] int release();

 private:
  explicit DaemonClient(int fd) : fd_(fd) {}
  [[nodiscard]] OrError<std::string> exchange(std::uint16_t kind, std::string_view payload, int passed_fd);

  int fd_ = -1;
  std::uint64_t next_id_ = 1;
};

}  // namespace roci::tools
