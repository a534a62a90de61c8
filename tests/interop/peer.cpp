// One of two programs that try every operation on each other, with all data looked at on both sides.
//
//   interop_peer [-d DEVICE] serve PORT             does what its driver says, until that hangs up
//   interop_peer [-d DEVICE] drive ADDRESS PORT     one cell of the matrix a line on stdin, one result a line
//   on stdout
//
// A cell is words of KEY=VALUE (see Cell). The two agree over TCP; the cell's requester posts, its responder
// is written to, read from or sent to. It uses plain verbs and
// librdmacm only, so that it runs on any device: a result is
// `ok`, or `fail` and who saw what. A failed cell does not end the run; a peer that is gone does.
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/interop/agreement.h"
#include "tests/interop/cm_side.h"
#include "tests/interop/verbs_side.h"

namespace {

using namespace roci::interop;

std::string run_cell(Device& device, Line& line, const Cell& cell, bool is_requester) {
  return cell.service == "cm" ? run_cm_cell(device.context, line, cell, is_requester)
                              : run_verbs_cell(device, line, cell, is_requester);
}

void serve(Device& device, const char* port) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<std::uint16_t>(std::stoul(port)));
  if (bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 || listen(listener, 1) != 0) {
    throw std::runtime_error("cannot listen on TCP port " + std::string(port));
  }
  std::puts("listening");
  std::fflush(stdout);
  Line line(accept(listener, nullptr, nullptr));
  close(listener);
  while (const std::optional<std::string> text = line.get(-1)) {
    const Cell cell = parse_cell(*text);
    line.put("end " + run_cell(device, line, cell, !cell.driver_requests));
  }
}

int dial(const char* address, const char* port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address, port, &hints, &found) != 0) throw std::runtime_error("no such address");
  const auto end = Clock::now() + std::chrono::seconds(20);  // until the other side listens
  for (;;) {
    const int fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
      freeaddrinfo(found);
      return fd;
    }
    close(fd);
    if (Clock::now() > end) throw std::runtime_error("the other side does not listen");
    usleep(50000);
  }
}

void drive(Device& device, const char* address, const char* port) {
  Line line(dial(address, port));
  for (std::string text; std::getline(std::cin, text);) {
    const Cell cell = parse_cell(text);
    line.put(text);
    const std::string ours = run_cell(device, line, cell, cell.driver_requests);
    std::string theirs = line.must_get(kCellMs);
    theirs.erase(0, std::strlen("end "));
    if (ours.empty() && theirs.empty()) {
      std::puts("ok");
    } else {
      std::printf("fail driver: %s; server: %s\n", ours.empty() ? "ok" : ours.c_str(),
                  theirs.empty() ? "ok" : theirs.c_str());
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  std::string name = "rxe0";
  if (words.size() >= 2 && words[0] == "-d") {
    name = words[1];
    words.erase(words.begin(), words.begin() + 2);
  }
  const bool serves = words.size() == 2 && words[0] == "serve";
  if (!serves && !(words.size() == 3 && words[0] == "drive")) {
    std::fputs("usage: interop_peer [-d DEVICE] serve PORT | drive ADDRESS PORT\n", stderr);
    return 2;
  }
  try {
    Device device(name);
    if (serves)
      serve(device, words[1].c_str());
    else
      drive(device, words[1].c_str(), words[2].c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interop_peer: %s\n", error.what());
    return 1;
  }
  return 0;
}
