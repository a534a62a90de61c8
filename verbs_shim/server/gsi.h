// QP1 of every NIC: how the daemon's connection manager reaches the wire.
//
// A verbs client of the engine like any other, but inside the daemon: one context for each NIC on shard 0,
// its own memory, work requests in shared rings, a completion channel. MADs go out with an address handle of
// their destination, of which a bounded number is kept, and which are made anew after a while as a neighbour
// may have moved. What cannot be sent (link down, no neighbour, no room) is dropped and counted: whoever
// speaks by MADs repeats. Not here: what is in them. Control thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <system_error>
#include <vector>

#include "emulator/cm/connection_manager.h"
#include "emulator/command.h"
#include "verbs_shim/server/context.h"
#include "verbs_shim/server/event_pipe.h"

namespace roci::shim {

class GsiPort;

class Gsi {
 public:
  using Receive = std::function<void(const emulator::cm::ReceivedMad&)>;
  struct Counters {
    std::uint64_t received = 0, sent = 0;
    std::uint64_t malformed = 0;     // not the size of a MAD
    std::uint64_t no_neighbour = 0;  // not sent: nobody has the address, or not yet, and enough wait for it
    std::uint64_t no_room = 0;       // not sent: the send queue is full
    std::uint64_t not_up = 0;        // not sent: link down, or QP1 not there
  };

  // `receive` is called from on_completions().
  Gsi(ContextHost& host, Receive receive);
  ~Gsi();
  Gsi(const Gsi&) = delete;
  Gsi& operator=(const Gsi&) = delete;

  // Opens QP1 of every NIC; what fails is said in the log, and then nothing is sent or received there.
  void open();
  // `done` runs when the engine has let go of everything.
  void close(const std::function<void()>& done);

  // Readable when completions wait: then on_completions(). -1: open() found no descriptor.
  [[nodiscard]] int events_fd() const { return events_.get(); }
  void on_completions();

  void send(const emulator::cm::OutgoingMad& mad);
  // Finds the neighbour of a destination; `then` may run at once.
  void resolve(emulator::NicId nic, const emulator::AddressVector& to, std::function<void(std::errc)> then);

  // A context of ours, of shard 0: no client's.
  [[nodiscard]] bool owns(emulator::ContextId context) const;
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  ContextHost& host_;
  const Receive receive_;
  Counters counters_;
  std::shared_ptr<EventPipe> channel_;
  UniqueFd events_;                              // the reader of `channel_`
  std::vector<std::shared_ptr<GsiPort>> ports_;  // by NIC
};

}  // namespace roci::shim
