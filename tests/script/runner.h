// Carries out a script line by line; one for each run.
//
// runner.cpp: lines, time, packets, completions, events. runner_verbs.cpp: what the application does. A line
// that fails throws Stop. Test code only. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/script/application.h"
#include "tests/script/host.h"
#include "tests/script/packet_line.h"
#include "tests/script/script.h"
#include "tests/script/words.h"

namespace roci::scripts {

// One event of the script; a burst of packets is one, of several lines.
struct Statement {
  std::size_t line = 0;
  std::string text;
  std::vector<std::string> burst;  // the "& ..." lines behind it
};

class Runner {
 public:
  Runner();

  void execute(const Statement& statement);
  // Nothing may be left that no line expected.
  void finish();

  // For texts that are no right scripts (tests/fuzz): what no line expected is thrown away, and what must
  // hold whatever was done is looked at; nothing if it does.
  void drop_output();
  [[nodiscard]] std::optional<std::string> broken_promise() const;

 private:
  using Handler = void (Runner::*)(Words&);
  enum class Role { kStimulus, kCheck, kExpectation };
  struct Verb {
    std::string_view name;
    Handler handler;
    Role role;
  };
  static const Verb kVerbs[];

  // ---- time, and what nobody expected
  [[nodiscard]] bool has_output() const;
  [[nodiscard]] std::string describe_output() const;
  void require_sound() const;  // what came out, whatever the script expects
  void require_quiet();
  void settle(Role role);  // lets the line's time pass without any output
  // Lets time pass until has() is true; complains if it is too early, too late, or something else comes.
  template <class Has, class At>
  void await(const std::string& expected, Has has, At at);

  // ---- objects by name
  void build(const HostOptions& options);
  [[nodiscard]] Host& host();  // made with the first line that needs it
  [[nodiscard]] Application& app();
  [[nodiscard]] Qp& qp();
  [[nodiscard]] Cq& cq_named(const std::string& name);
  [[nodiscard]] const Region& region_named(const std::string& name);
  // "mr+0x10", "R-8", "0x7000".
  struct Place {
    const Region* region = nullptr;
    std::uint64_t address = 0;  // in the application's memory
    std::uint64_t iova = 0;     // as peers and SGEs name it
  };
  [[nodiscard]] Place place_of(const std::string& text);
  [[nodiscard]] std::uint32_t key_of(const std::string& text);  // "mr", "R", "mr^1", "0x1234"
  [[nodiscard]] std::uint32_t qpn_of(const std::string& text);
  [[nodiscard]] std::uint32_t access_of(const std::string& text);
  void judge(std::errc error, Words& words);  // against "-> EINVAL", or success

  // ---- packets
  [[nodiscard]] PacketLine read_packet(Words& words, bool is_sent);
  [[nodiscard]] std::string resolve_psn(const std::string& text, bool is_peers_request) const;
  void add_frames(Words& words, std::vector<Bytes>& frames);
  void on_receive(Words& words);
  void on_expect_packet(Words& words);
  void expect_packet(const PacketLine& line);
  void expect_other_frame(const std::string& kind);
  void on_expect_completion(Words& words);
  void on_expect_event(Words& words);
  void on_expect_reply(Words& words);
  void on_stall(Words& words);

  // ---- the application
  void on_engine(Words& words);
  void on_qp(Words& words);
  void on_region(Words& words);
  void on_pd(Words& words);
  void on_cq(Words& words);
  void on_window(Words& words);
  void on_address_handle(Words& words);
  void on_multicast(Words& words);
  void on_detach(Words& words);
  void on_resize(Words& words);
  void on_srq(Words& words);
  void on_limit(Words& words);
  [[nodiscard]] Srq& srq_named(const std::string& name);
  void on_post(Words& words);
  [[nodiscard]] std::string pd_named(Words& words);
  // The part of a work request that depends on its kind, and on the QP's.
  void fill_datagram(Words& words, emulator::RingSendWqe& wqe);
  void fill_bind(Words& words, emulator::RingSendWqe& wqe);
  void post_recv(Words& words);
  [[nodiscard]] std::vector<emulator::RingSge> sges_of(Words& words, const std::string& usual_place,
                                                       std::uint32_t usual_length, bool may_be_none);
  void on_modify(Words& words);
  void on_destroy(Words& words);
  void on_arm(Words& words);
  void on_unpolled(Words& words);
  void on_memory(Words& words);
  void on_link(Words& words);
  void on_transmit(Words& words);
  void on_state(Words& words);
  void on_query(Words& words);
  void on_verdict(Words& words);
  void on_counter(Words& words);
  [[nodiscard]] emulator::QpAttributes usual_attributes(const Qp& qp);
  std::uint32_t read_attributes(Words& words, emulator::QpAttributes& attributes);
  std::errc modify(Qp& qp, emulator::QpState to, std::uint32_t mask,
                   const emulator::QpAttributes& attributes);

  std::unique_ptr<Host> host_;
  std::unique_ptr<Application> app_;
  Qp* qp_ = nullptr;        // the line's
  Qp* first_qp_ = nullptr;  // of lines that name none
  When when_;
  const std::vector<std::string>* burst_ = nullptr;
  std::vector<emulator::DropReason> verdicts_;
};

}  // namespace roci::scripts
