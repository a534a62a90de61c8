// The local side of a script: one client with its objects by name, posting and polling as the provider does.
//
// Every command may fail, and its errno is the script's to judge; so is a post that the provider or the shim
// would refuse. Addresses are made up (plain_memory.h). Test code only. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "emulator/command.h"
#include "emulator/shared_layout.h"
#include "tests/script/host.h"
#include "tests/sim/verbs.h"

namespace roci::scripts {

struct Region {
  emulator::MrHandle handle;
  std::uint64_t address = 0, iova = 0, length_bytes = 0;
  std::uint32_t key = 0;
};

struct Window {
  emulator::MwHandle handle;
  std::uint32_t key = 0, old_key = 0;  // of the last binding that was posted, and of the one before
};

struct Completed {
  emulator::Time at;
  emulator::RingCqe cqe;
};

struct Cq {
  std::string name;
  emulator::CqHandle handle;
  sim::RingMemory ring;
  bool is_polled = true;  // false: completions stay in the ring until the script asks for them
  std::deque<Completed> polled;
};

struct Srq {
  emulator::SrqHandle handle;
  sim::RingMemory ring;
  std::uint32_t max_sge = 0;
};

struct Qp {
  std::string name;
  emulator::QpHandle handle;
  proto::Qpn qpn;
  emulator::QpType type = emulator::QpType::kRc;
  emulator::QpCapabilities capabilities;
  sim::RingMemory send_ring, recv_ring;
  Cq *send_cq = nullptr, *recv_cq = nullptr;
  Srq* srq = nullptr;  // receives come from there
  // The peer's side of the connection.
  proto::Qpn peer_qpn;
  proto::Psn first_psn, peer_first_psn;  // of the engine as requester, and of the peer
};

// A work request as it stands in the ring.
struct SendPost {
  emulator::RingSendWqe wqe{};  // `dma` is computed
  std::vector<emulator::RingSge> sges;
  std::optional<Bytes> inline_data;
  std::optional<std::uint32_t> num_sge;  // a lie in the ring
};

class Application {
 public:
  explicit Application(Host& host);

  // The reply, or EINPROGRESS: it comes later, by late_reply().
  template <class Body>
  emulator::CommandReply transact(Body body) {
    return transact(emulator::Command{context_, std::move(body)});
  }
  [[nodiscard]] std::optional<std::errc> late_reply();

  std::errc alloc_pd(const std::string& name);
  // `space_bytes` of fresh memory, of which `bytes` are registered.
  std::errc register_region(const std::string& name, const std::string& pd, std::size_t bytes,
                            std::uint32_t access, std::optional<std::uint64_t> iova);
  std::errc create_cq(const std::string& name, std::uint32_t entries);
  std::errc resize_cq(Cq& cq, std::uint32_t entries);
  std::errc create_srq(const std::string& name, const std::string& pd, std::uint32_t max_wr,
                       std::uint32_t max_sge, std::uint32_t limit);
  struct QpShape {
    std::uint32_t type = 0;  // a number: it may be none that there is
    emulator::QpCapabilities capabilities{};
    bool signal_all = false;
    Srq* srq = nullptr;
  };
  std::errc create_qp(const std::string& name, const std::string& pd, Cq& send_cq, Cq& recv_cq,
                      const QpShape& shape);

  std::errc alloc_window(const std::string& name, const std::string& pd, std::uint32_t type);
  std::errc create_ah(const std::string& name, const std::string& pd, const emulator::AddressVector& av);

  // ENOMEM: the queue is full; EINVAL: not in this QP state, or too many SGEs. The doorbell is not rung.
  std::errc queue_send(Qp& qp, const SendPost& post);
  void ring_doorbell(std::uint32_t slot);
  std::errc post_recv(Qp& qp, std::uint64_t wr_id, const std::vector<emulator::RingSge>& sges);
  std::errc post_recv(Srq& srq, std::uint64_t wr_id, const std::vector<emulator::RingSge>& sges);

  // Takes what is in the rings of polled CQs.
  void poll();
  void poll(Cq& cq);
  void arm(const Cq& cq, emulator::CqArm how);
  [[nodiscard]] emulator::QpState state_of(const Qp& qp) const;
  // What an event is about: a QP's or CQ's name, "port".
  [[nodiscard]] std::string object_of(const emulator::Event& event) const;
  [[nodiscard]] std::span<std::byte> bytes(std::uint64_t address, std::size_t count);
  [[nodiscard]] emulator::AddressSpaceId space() const { return space_; }

  std::map<std::string, emulator::PdHandle> pds;
  std::map<std::string, Region> regions;
  std::map<std::string, Window> windows;
  std::map<std::string, std::unique_ptr<Srq>> srqs;
  std::map<std::string, emulator::AhHandle> ahs;
  std::map<std::string, std::unique_ptr<Cq>> cqs;
  std::map<std::string, std::unique_ptr<Qp>> qps;

  static constexpr std::uint32_t kAllRights = emulator::kAccessLocalWrite | emulator::kAccessRemoteWrite |
                                              emulator::kAccessRemoteRead | emulator::kAccessRemoteAtomic;

 private:
  emulator::CommandReply transact(emulator::Command command);
  std::uint64_t name_object(const std::string& name);

  Host& host_;
  emulator::AddressSpaceId space_;
  sim::RingMemory control_memory_;
  emulator::ControlArea* control_ = nullptr;
  emulator::ContextId context_;
  std::uint64_t next_address_ = 0x100000;
  std::uint64_t next_command_ = 1;
  std::optional<emulator::CommandId> waiting_;
  std::vector<std::string> object_names_;  // by user handle
};

}  // namespace roci::scripts
