// How a uverbs command becomes an engine's and its reply a response: objects whose rules are all the
// engine's. A scripted shard is in its place, which says what it was asked and answers as it is told.
#include <poll.h>

#include <catch2/catch.hpp>
#include <map>
#include <variant>

#include "emulator/ring_shape.h"
#include "tests/verbs_shim/server_fixture.h"
#include "tests/verbs_shim/verbs_client.h"

namespace roci::shim {
namespace {

using Body = decltype(emulator::Command::body);
using ReplyBodyOfEngine = decltype(emulator::CommandReply::body);

// Gives out handles from 1 on and remembers the last command of each kind. Answers at once, on the control
// thread.
class ScriptedShard final : public ReplyingShard {
 public:
  bool submit(emulator::CommandId id, emulator::Command&& command) override {
    const std::lock_guard guard(mutex_);
    if (auto* const open = std::get_if<emulator::OpenContext>(&command.body))
      new (open->control_area.data()) emulator::ControlArea{};
    emulator::CommandReply reply;
    reply.id = id;
    if (is_the_daemons_own(command)) {
      reply.error = std::errc::no_such_device;
      post_reply(std::move(reply));
      return true;
    }
    reply.error = std::exchange(next_error_, std::errc{});
    reply.body = std::visit([this](const auto& body) { return answer(body); }, command.body);
    last_[command.body.index()] = std::move(command.body);
    post_reply(std::move(reply));
    return true;
  }
  [[nodiscard]] const emulator::Counters& counters(emulator::NicId) const override { return counters_; }

  // The next command fails.
  void refuse(std::errc error) {
    const std::lock_guard guard(mutex_);
    next_error_ = error;
  }
  // The last command of that kind.
  template <class T>
  T last() {
    const std::lock_guard guard(mutex_);
    const auto at = last_.find(Body(T{}).index());
    REQUIRE(at != last_.end());
    return std::get<T>(at->second);
  }

 private:
  // QP1, which is not what is tested here.
  static bool is_the_daemons_own(const emulator::Command& command) {
    const auto* const open = std::get_if<emulator::OpenContext>(&command.body);
    return open != nullptr && open->client.rfind("rocid", 0) == 0;
  }
  template <class T>
  ReplyBodyOfEngine answer(const T&) {
    using namespace emulator;
    const std::uint32_t handle = next_handle_++;
    if constexpr (std::is_same_v<T, OpenContext>) return ContextId{handle};
    if constexpr (std::is_same_v<T, AllocPd>) return PdHandle{handle};
    if constexpr (std::is_same_v<T, CreateCq>) return CqHandle{handle};
    if constexpr (std::is_same_v<T, CreateQp>) return CreateQpReply{{handle}, proto::Qpn{0x100 + handle}};
    if constexpr (std::is_same_v<T, CreateSrq>) return SrqHandle{handle};
    if constexpr (std::is_same_v<T, QuerySrq>) return QuerySrqReply{31, 3, 5};
    if constexpr (std::is_same_v<T, AllocMw>) return AllocMwReply{{handle}, proto::Rkey{0xABCD00}};
    if constexpr (std::is_same_v<T, CreateAh>) return AhHandle{handle};
    return std::monostate{};
  }

  std::errc next_error_{};
  std::uint32_t next_handle_ = 1;
  std::map<std::size_t, Body> last_;
  emulator::Counters counters_;
};

class ScriptedServer {
 public:
  ScriptedServer() {
    std::string name = (std::filesystem::temp_directory_path() / "shim-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    folder_ = name;
    ServerConfig config;
    config.socket_path = name + "/rocid.sock";
    config.nics.resize(1);
    config.nics[0].name = "rxe0";
    config.nics[0].addresses.push_back({proto::Gid::from_ipv4(0x7F4D0001u), 24});
    config.log = [](std::string_view) {};
    server_ = std::make_unique<ControlServer>(config, std::vector<ShardLink*>{&shard}, capture_);
    thread_ = std::thread([this] { server_->serve(); });
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;
  ~ScriptedServer() {
    server_->stop();
    thread_.join();
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  [[nodiscard]] TestClient connect() const { return TestClient(folder_ + "/rocid.sock"); }
  [[nodiscard]] ControlServer& server() { return *server_; }
  ScriptedShard shard;

 private:
  std::string folder_;
  FakeCapture capture_;
  std::unique_ptr<ControlServer> server_;
  std::thread thread_;
};

constexpr std::size_t kSrqRoom = kRoom<ib_uverbs_create_srq_resp> + sizeof(SrqMmapInfo);

TestReply create_srq(Verbs& v, std::uint32_t max_wr, std::uint32_t max_sge, std::uint32_t limit = 0) {
  ib_uverbs_create_srq core{};
  core.user_handle = 0x3000;
  core.pd_handle = 9;
  core.max_wr = max_wr;
  core.max_sge = max_sge;
  core.srq_limit = limit;
  return v.run(IB_USER_VERBS_CMD_CREATE_SRQ, core, kSrqRoom);
}

// With the driver's part, which the shim has already looked at.
TestReply modify_srq(Verbs& v, std::uint32_t srq, std::uint32_t mask, std::uint32_t max_wr,
                     std::uint32_t limit) {
  struct {
    std::uint32_t handle, mask, max_wr, limit;
    std::uint64_t mmap_info_address;
  } const core{srq, mask, max_wr, limit, 0x7000};
  return v.run(IB_USER_VERBS_CMD_MODIFY_SRQ, core, 0);
}

TestReply destroy_srq(Verbs& v, std::uint32_t srq) {
  ib_uverbs_destroy_srq core{};
  core.srq_handle = srq;
  return v.run(IB_USER_VERBS_CMD_DESTROY_SRQ, core, kRoom<ib_uverbs_destroy_srq_resp>);
}

MmapInfo ring_of(const TestReply& reply, std::size_t core_bytes) {
  return reply.as<MmapInfo>(sizeof(UverbsReply) + core_bytes);
}

TEST_CASE("an SRQ gets what fits into its ring") {
  ScriptedServer f;
  Verbs v(f);
  struct Case {
    std::uint32_t wr, sge, granted_wr, granted_sge;
  };
  for (const Case& c :
       {Case{1, 0, 1, 1}, Case{1, 1, 1, 1}, Case{100, 2, 127, 5}, Case{16384, 32, 16384, 32}}) {
    const TestReply reply = create_srq(v, c.wr, c.sge, 7);
    REQUIRE(reply.error == 0);
    const auto created = reply.response<ib_uverbs_create_srq_resp>();
    CHECK(created.max_wr == c.granted_wr);
    CHECK(created.max_sge == c.granted_sge);
    const auto asked = f.shard.last<emulator::CreateSrq>();
    CHECK(asked.pd.value == 9);
    CHECK(asked.max_wr == created.max_wr);
    CHECK(asked.max_sge == created.max_sge);
    CHECK(asked.limit == 0);  // what creation is told is irrelevant
    CHECK(asked.user_handle == 0x3000);
    CHECK(asked.ring.size() == emulator::srq_ring_shape(created.max_wr, created.max_sge).bytes());
    const auto driver = reply.as<SrqMmapInfo>(sizeof(UverbsReply) + sizeof created);
    CHECK(driver.ring.size_bytes >= asked.ring.size());
    CHECK(driver.ring.offset >= emulator::kControlAreaBytes);
    CHECK(destroy_srq(v, created.srq_handle).error == 0);
  }
  CHECK(create_srq(v, 0, 1).error == EINVAL);
  CHECK(create_srq(v, 16385, 1).error == EINVAL);
  CHECK(create_srq(v, 1, 33).error == EINVAL);
  const std::uint64_t offset = ring_of(create_srq(v, 10, 1), kRoom<ib_uverbs_create_srq_resp>).offset;
  for (int i = 0; i < 3; ++i) {
    f.shard.refuse(std::errc::not_enough_memory);
    CHECK(create_srq(v, 10, 1).error == ENOMEM);
  }
  // What was refused has given its ring back: the next lies right behind the first.
  CHECK(ring_of(create_srq(v, 10, 1), kRoom<ib_uverbs_create_srq_resp>).offset == offset + 4096);
}

TEST_CASE("of the extended kinds of SRQ only the basic one is there") {
  ScriptedServer f;
  Verbs v(f);
  ib_uverbs_create_xsrq core{};
  core.max_wr = 10;
  core.max_sge = 1;
  core.pd_handle = 9;
  const TestReply basic = v.run(IB_USER_VERBS_CMD_CREATE_XSRQ, core, kSrqRoom);
  CHECK(basic.error == 0);
  CHECK(basic.response<ib_uverbs_create_srq_resp>().max_wr == 15);
  for (const std::uint32_t type : {1u, 2u}) {  // XRC, tag matching
    core.srq_type = type;
    CHECK(v.run(IB_USER_VERBS_CMD_CREATE_XSRQ, core, kSrqRoom).error == EOPNOTSUPP);
  }
}

TEST_CASE("an SRQ's limit is the engine's, its size a new ring; the old one lives until the next command") {
  ScriptedServer f;
  Verbs v(f);
  const TestReply created = create_srq(v, 15, 1);
  const std::uint32_t srq = created.response<ib_uverbs_create_srq_resp>().srq_handle;
  const MmapInfo first = ring_of(created, kRoom<ib_uverbs_create_srq_resp>);

  const TestReply limited = modify_srq(v, srq, kSrqLimit, 0, 3);
  CHECK(limited.error == 0);
  CHECK(limited.payload.size() == sizeof(UverbsReply));  // nothing for the application's memory
  CHECK(f.shard.last<emulator::ModifySrq>().limit == 3u);
  CHECK(f.shard.last<emulator::ModifySrq>().ring.empty());

  const TestReply resized = modify_srq(v, srq, kSrqMaxWr, 40, 0);
  REQUIRE(resized.error == 0);
  CHECK(!f.shard.last<emulator::ModifySrq>().limit);
  CHECK(f.shard.last<emulator::ModifySrq>().max_wr == 63);
  const MmapInfo second = resized.response<MmapInfo>();
  CHECK(second.offset != first.offset);
  CHECK(second.size_bytes >= emulator::srq_ring_shape(40, 1).bytes());

  v.memory[first.offset] = v.memory[second.offset] = std::byte{0x55};
  f.shard.refuse(std::errc::invalid_argument);
  CHECK(modify_srq(v, srq, kSrqMaxWr, 10, 0).error == EINVAL);
  CHECK(v.memory[first.offset] == std::byte{0x55});
  CHECK(v.memory[second.offset] == std::byte{0x55});
  CHECK(modify_srq(v, srq, kSrqMaxWr | kSrqLimit, 10, 2).error == 0);
  CHECK(v.memory[first.offset] == std::byte{0});  // its pages went back
  CHECK(v.memory[second.offset] == std::byte{0x55});
  CHECK(destroy_srq(v, srq).error == 0);
  CHECK(v.memory[second.offset] == std::byte{0});

  CHECK(modify_srq(v, srq, kSrqLimit, 0, 3).error == EINVAL);
  const std::uint32_t other = create_srq(v, 15, 1).response<ib_uverbs_create_srq_resp>().srq_handle;
  CHECK(modify_srq(v, other, kSrqMaxWr, 0, 0).error == EINVAL);
  CHECK(modify_srq(v, other, kSrqMaxWr, 16385, 0).error == EINVAL);
  CHECK(modify_srq(v, other, 4, 0, 0).error == EINVAL);
  f.shard.refuse(std::errc::device_or_resource_busy);
  CHECK(destroy_srq(v, other).error == EBUSY);
  CHECK(destroy_srq(v, other).error == 0);
}

TEST_CASE("what an SRQ is, and its events") {
  ScriptedServer f;
  Verbs v(f);
  const std::uint32_t srq = create_srq(v, 15, 1).response<ib_uverbs_create_srq_resp>().srq_handle;
  ib_uverbs_query_srq query{};
  query.srq_handle = srq;
  const auto shown = v.run(IB_USER_VERBS_CMD_QUERY_SRQ, query, kRoom<ib_uverbs_query_srq_resp>)
                         .response<ib_uverbs_query_srq_resp>();
  CHECK(f.shard.last<emulator::QuerySrq>().srq.value == srq);
  CHECK(shown.max_wr == 31);
  CHECK(shown.max_sge == 3);
  CHECK(shown.srq_limit == 5);
  emulator::Event event;
  event.kind = emulator::EventKind::kSrqLimitReached;
  event.context = {1};  // the first handle given out
  event.user_handle = 0x3000;
  for (int i = 0; i < 3; ++i)
    f.server().on_events({&event, 1});
  ib_uverbs_async_event_desc read{};
  REQUIRE(::read(v.async.get(), &read, sizeof read) == sizeof read);
  CHECK(read.event_type == 15);  // IBV_EVENT_SRQ_LIMIT_REACHED
  CHECK(read.element == 0x3000);
  CHECK(destroy_srq(v, srq).response<ib_uverbs_destroy_srq_resp>().events_reported == 1);
  pollfd more{v.async.get(), POLLIN, 0};
  CHECK(::poll(&more, 1, 0) == 0);
}

TEST_CASE("a QP with an SRQ has no receive ring") {
  ScriptedServer f;
  Verbs v(f);
  ib_uverbs_create_qp request = v.qp_request(9, v.cq());
  request.qp_type = 4;
  request.is_srq = 1;
  request.srq_handle = 77;
  request.max_recv_wr = 0xFFFFFFFF;  // of no meaning then
  const TestReply reply = v.create_qp(request);
  REQUIRE(reply.error == 0);
  const auto created = reply.response<ib_uverbs_create_qp_resp>();
  CHECK(created.max_recv_wr == 0);
  CHECK(created.max_recv_sge == 0);
  const auto rings = reply.as<QpMmapInfo>(sizeof(UverbsReply) + sizeof created);
  CHECK(rings.recv.size_bytes == 0);
  CHECK(rings.send.size_bytes != 0);
  const auto asked = f.shard.last<emulator::CreateQp>();
  REQUIRE(asked.srq);
  CHECK(asked.srq->value == 77);
  CHECK(asked.type == 4);
  CHECK(asked.recv_ring.empty());
  ib_uverbs_ex_create_qp extended{};
  extended.send_cq_handle = extended.recv_cq_handle = request.send_cq_handle;
  extended.qp_type = 3;
  const std::size_t room = kRoom<ib_uverbs_ex_create_qp_resp>;
  CHECK(v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_CREATE_QP, extended, room, sizeof(QpMmapInfo)))
            .error == 0);
  CHECK(f.shard.last<emulator::CreateQp>().type == 3);
  CHECK(!f.shard.last<emulator::CreateQp>().srq);
  extended.comp_mask = 1;
  CHECK(v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_CREATE_QP, extended, room, sizeof(QpMmapInfo)))
            .error == EOPNOTSUPP);
  extended.comp_mask = 2;
  CHECK(v.client.uverbs(v.client.extended(IB_USER_VERBS_EX_CMD_CREATE_QP, extended, room, sizeof(QpMmapInfo)))
            .error == EINVAL);
}

TEST_CASE("address handles") {
  ScriptedServer f;
  Verbs v(f);
  ib_uverbs_create_ah core{};
  core.pd_handle = 9;
  for (std::uint8_t i = 0; i < 16; ++i)
    core.attr.grh.dgid[i] = i;
  core.attr.grh.flow_label = 0x12345;
  core.attr.grh.sgid_index = 1;
  core.attr.grh.hop_limit = 7;
  core.attr.grh.traffic_class = 0x20;
  core.attr.sl = 3;
  core.attr.is_global = 1;
  core.attr.port_num = 1;
  const std::size_t room = kRoom<ib_uverbs_create_ah_resp> + sizeof(AhNumber);
  const TestReply reply = v.run(IB_USER_VERBS_CMD_CREATE_AH, core, room);
  REQUIRE(reply.error == 0);
  const auto asked = f.shard.last<emulator::CreateAh>();
  CHECK(asked.pd.value == 9);
  CHECK(asked.av.dgid.bytes[15] == 15);
  CHECK(asked.av.flow_label == 0x12345);
  CHECK(asked.av.sgid_index == 1);
  CHECK(asked.av.hop_limit == 7);
  CHECK(asked.av.traffic_class == 0x20);
  CHECK(asked.av.service_level == 3);
  CHECK(asked.av.is_global);
  CHECK(asked.av.port == 1);
  const std::uint32_t handle = reply.response<std::uint32_t>();
  CHECK(handle != 0);
  CHECK(reply.as<AhNumber>(sizeof(UverbsReply) + 4).ah_number == handle + 1);
  f.shard.refuse(std::errc::timed_out);
  CHECK(v.run(IB_USER_VERBS_CMD_CREATE_AH, core, room).error == ETIMEDOUT);
  CHECK(v.run(IB_USER_VERBS_CMD_CREATE_AH, core, 4).error == EINVAL);  // a library that knows no ah_num
  CHECK(v.run(IB_USER_VERBS_CMD_DESTROY_AH, ib_uverbs_destroy_ah{handle}, 0).error == 0);
  CHECK(f.shard.last<emulator::DestroyAh>().ah.value == handle);
}

TEST_CASE("memory windows") {
  ScriptedServer f;
  Verbs v(f);
  // ib_uverbs_alloc_mw without its flexible end.
  struct {
    std::uint64_t response;
    std::uint32_t pd;
    std::uint8_t type, reserved[3];
  } const core{0, 9, 2, {}};
  const TestReply reply = v.run(IB_USER_VERBS_CMD_ALLOC_MW, core, 8);
  REQUIRE(reply.error == 0);
  CHECK(f.shard.last<emulator::AllocMw>().pd.value == 9);
  CHECK(f.shard.last<emulator::AllocMw>().type == 2);
  CHECK(reply.as<std::uint32_t>(sizeof(UverbsReply) + 4) == 0xABCD00);
  const auto handle = reply.response<std::uint32_t>();
  CHECK(v.run(IB_USER_VERBS_CMD_DEALLOC_MW, ib_uverbs_dealloc_mw{handle}, 0).error == 0);
  CHECK(f.shard.last<emulator::DeallocMw>().mw.value == handle);
}

TEST_CASE("multicast groups") {
  ScriptedServer f;
  Verbs v(f);
  ib_uverbs_attach_mcast core{};
  core.gid[0] = 0xFF;
  core.gid[15] = 5;
  core.qp_handle = 12;
  CHECK(v.run(IB_USER_VERBS_CMD_ATTACH_MCAST, core, 0).error == 0);
  CHECK(f.shard.last<emulator::AttachMulticast>().qp.value == 12);
  CHECK(f.shard.last<emulator::AttachMulticast>().group.bytes[0] == 0xFF);
  CHECK(f.shard.last<emulator::AttachMulticast>().group.bytes[15] == 5);
  CHECK(v.run(IB_USER_VERBS_CMD_DETACH_MCAST, core, 0).error == 0);
  CHECK(f.shard.last<emulator::DetachMulticast>().qp.value == 12);
}

TEST_CASE("a CQ moves into another ring; the old one lives until the next command") {
  ScriptedServer f;
  Verbs v(f);
  const TestReply created = v.create_cq(15);
  const std::uint32_t cq = created.response<ib_uverbs_create_cq_resp>().cq_handle;
  const MmapInfo first = ring_of(created, kRoom<ib_uverbs_create_cq_resp>);
  const auto resize = [&](std::uint32_t handle, std::uint32_t entries) {
    ib_uverbs_resize_cq core{};
    core.cq_handle = handle;
    core.cqe = entries;
    return v.run(IB_USER_VERBS_CMD_RESIZE_CQ, core, kRoom<ib_uverbs_resize_cq_resp> + sizeof(MmapInfo));
  };
  const TestReply resized = resize(cq, 100);
  REQUIRE(resized.error == 0);
  CHECK(resized.response<ib_uverbs_resize_cq_resp>().cqe == 127);
  CHECK(f.shard.last<emulator::ResizeCq>().slots == 128);
  CHECK(f.shard.last<emulator::ResizeCq>().ring.size() == emulator::cq_ring_shape(100).bytes());
  const MmapInfo second = ring_of(resized, kRoom<ib_uverbs_resize_cq_resp>);
  CHECK(second.size_bytes >= emulator::cq_ring_shape(100).bytes());
  v.memory[first.offset] = v.memory[second.offset] = std::byte{0x55};
  f.shard.refuse(std::errc::invalid_argument);
  CHECK(resize(cq, 3).error == EINVAL);  // too many wait
  CHECK(v.memory[first.offset] == std::byte{0x55});
  CHECK(v.destroy_cq(cq).error == 0);
  CHECK(v.memory[first.offset] == std::byte{0});
  CHECK(v.memory[second.offset] == std::byte{0});
  CHECK(resize(cq, 3).error == EINVAL);
  const std::uint32_t other = v.cq();
  CHECK(resize(other, 0).error == EINVAL);
  CHECK(resize(other, 65537).error == EINVAL);
}

}  // namespace
}  // namespace roci::shim
