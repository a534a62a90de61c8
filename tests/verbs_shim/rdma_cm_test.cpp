// The rdma_cm device as its channels see it: commands and their errnos, events, ids that move, and what is
// hostile. A real connection manager, two NICs and an engine are behind it.
#include "verbs_shim/rdma_cm_abi.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/verbs_shim/server_fixture.h"

namespace roci::shim {
namespace {

using ucm::Command;

constexpr std::uint32_t kAddrResolved = 0, kRouteResolved = 2, kConnectRequest = 4, kConnectResponse = 5,
                        kRejected = 8, kEstablished = 9, kDisconnected = 10;
constexpr std::uint16_t kTcp = 0x0106;
constexpr std::uint32_t kServerIp = 0x7F4D0001;

ucm::SockAddr address(std::uint32_t ip, std::uint16_t port) {
  ucm::SockAddr result{};
  const std::uint16_t family = ucm::kInet, port_be = __builtin_bswap16(port);
  const std::uint32_t ip_be = __builtin_bswap32(ip);
  std::memcpy(result.bytes, &family, 2);
  std::memcpy(result.bytes + 2, &port_be, 2);
  std::memcpy(result.bytes + 4, &ip_be, 4);
  return result;
}

// One open of the device.
class Channel {
 public:
  explicit Channel(const ServerFixture& f) : client_(f.connect()) {
    TestReply opened = client_.call(MessageKind::kOpenRdmaCm);
    REQUIRE(opened.error == 0);
    REQUIRE(opened.fds.size() == 1);
    events_ = std::move(opened.fds[0]);
  }

  template <class Core>
  TestReply command(Command number, const Core& core, std::size_t out_bytes = 4,
                    std::vector<std::byte> option = {}, std::uint64_t inode = 0) {
    std::vector<std::byte> bytes(sizeof core);
    std::memcpy(bytes.data(), &core, sizeof core);
    return raw(number, bytes, out_bytes, std::move(option), inode);
  }
  TestReply raw(Command number, const std::vector<std::byte>& core, std::size_t out_bytes,
                const std::vector<std::byte>& option = {}, std::uint64_t inode = 0) {
    const ucm::Header header{static_cast<std::uint32_t>(number), static_cast<std::uint16_t>(core.size()),
                             static_cast<std::uint16_t>(out_bytes)};
    RdmaCmRequest request;
    request.other_inode = inode;
    request.command_bytes = static_cast<std::uint32_t>(sizeof header + core.size());
    std::vector<std::byte> message(sizeof request + sizeof header);
    std::memcpy(message.data(), &request, sizeof request);
    std::memcpy(message.data() + sizeof request, &header, sizeof header);
    message.insert(message.end(), core.begin(), core.end());
    message.insert(message.end(), option.begin(), option.end());
    return client_.call(MessageKind::kRdmaCm, message);
  }

  std::uint32_t create(std::uint64_t uid, std::uint16_t space = kTcp) {
    ucm::CreateId core{};
    core.uid = uid;
    core.port_space = space;
    const TestReply reply = command(Command::kCreateId, core);
    REQUIRE(reply.error == 0);
    return reply.as<std::uint32_t>();
  }
  TestReply destroy(std::uint32_t id) { return command(Command::kDestroyId, ucm::DestroyId{0, id, 0}); }
  std::uint32_t listen(std::uint64_t uid, std::uint16_t port) {
    const std::uint32_t id = create(uid);
    REQUIRE(command(Command::kBindIp, ucm::BindIp{0, address(kServerIp, port), id}).error == 0);
    REQUIRE(command(Command::kListen, ucm::Listen{id, 10}).error == 0);
    return id;
  }
  // Resolved, and a request is on its way.
  std::uint32_t connect(std::uint64_t uid, std::uint16_t port) {
    const std::uint32_t id = create(uid);
    ucm::ResolveIp resolve{};
    resolve.destination = address(kServerIp, port);
    resolve.id = id;
    resolve.timeout_ms = 2000;
    REQUIRE(command(Command::kResolveIp, resolve).error == 0);
    REQUIRE(next().event == kAddrResolved);
    REQUIRE(command(Command::kResolveRoute, ucm::ResolveRoute{id, 2000}).error == 0);
    REQUIRE(next().event == kRouteResolved);
    ucm::Connect core{};
    core.id = id;
    core.parameters.valid = 1;
    core.parameters.qp_num = 0x100 + id;
    core.parameters.private_data[0] = 0x5A;
    core.parameters.private_data_bytes = 1;
    REQUIRE(command(Command::kConnect, core).error == 0);
    return id;
  }
  TestReply accept(std::uint32_t id, std::uint64_t uid, bool with_parameters) {
    ucm::Accept core{};
    core.uid = uid;
    core.id = id;
    core.parameters.valid = with_parameters ? 1 : 0;
    core.parameters.qp_num = 0x200 + id;
    return command(Command::kAccept, core);
  }

  [[nodiscard]] bool has_event(int wait_ms = 0) const {
    pollfd ready{events_.get(), POLLIN, 0};
    return ::poll(&ready, 1, wait_ms) == 1 && (ready.revents & POLLIN) != 0;
  }
  ucm::EventRecord next() const {
    ucm::EventRecord record{};
    REQUIRE(has_event(20000));
    REQUIRE(::read(events_.get(), &record, sizeof record) == sizeof record);
    return record;
  }
  [[nodiscard]] std::uint64_t inode() const {
    struct stat status {};
    REQUIRE(::fstat(events_.get(), &status) == 0);
    return status.st_ino;
  }
  void close_events() { events_.reset(); }
  [[nodiscard]] int events_fd() const { return events_.get(); }
  TestClient& client() { return client_; }

 private:
  TestClient client_;
  UniqueFd events_;
};

std::size_t ids(const ServerFixture& f) {
  const std::string text = f.connect().admin(R"({"op":"show","what":"cm"})").text();
  return nlohmann::json::parse(text)["cms"].size();
}

TEST_CASE("a connection is made, used and ended, and events are of the ids they belong to") {
  ServerFixture f;
  Channel server(f), client(f);
  const std::uint32_t listener = server.listen(0x1000, 7000);
  const std::uint32_t active = client.connect(0x2000, 7000);

  const ucm::EventRecord request = server.next();
  CHECK(request.event == kConnectRequest);
  CHECK(request.uid == 0x1000);
  CHECK(request.id != listener);
  CHECK(request.param.conn.qp_num == 0x100 + active);
  CHECK(request.param.conn.private_data[0] == 0x5A);
  // Before it accepts, the library asks for all three states.
  for (const std::uint32_t state : {1U, 2U, 3U})
    CHECK(server.command(Command::kInitQpAttr, ucm::InitQpAttr{0, request.id, state}, sizeof(ucm::QpAttr))
              .error == 0);
  const auto route =
      server.command(Command::kQueryRoute, ucm::Query{0, request.id, 0}, sizeof(ucm::QueryRouteResponse));
  REQUIRE(route.error == 0);
  CHECK(route.as<ucm::QueryRouteResponse>().path_count == 1);
  CHECK(route.as<ucm::QueryRouteResponse>().node_guid != 0);
  CHECK(std::memcmp(route.as<ucm::QueryRouteResponse>().source.bytes, address(kServerIp, 7000).bytes, 8) ==
        0);
  REQUIRE(server.accept(request.id, 0x1001, true).error == 0);

  const ucm::EventRecord response = client.next();
  CHECK(response.event == kConnectResponse);
  CHECK(response.uid == 0x2000);
  const auto rtr = client.command(Command::kInitQpAttr, ucm::InitQpAttr{0, active, 2}, sizeof(ucm::QpAttr))
                       .as<ucm::QpAttr>();
  CHECK(rtr.dest_qp_num == 0x200 + request.id);
  CHECK(rtr.ah.is_global == 1);
  REQUIRE(client.accept(active, 0, false).error == 0);
  const ucm::EventRecord established = server.next();
  CHECK(established.event == kEstablished);
  CHECK(established.uid == 0x1001);

  REQUIRE(client.command(Command::kDisconnect, ucm::Disconnect{active}).error == 0);
  CHECK(server.next().event == kDisconnected);
  CHECK(client.next().event == kDisconnected);
  // What was read is reported: nothing of the request's, which was its listener's.
  CHECK(server.destroy(request.id).as<std::uint32_t>() >= 2);
  CHECK(server.destroy(listener).as<std::uint32_t>() == 1);
  CHECK(client.destroy(active).as<std::uint32_t>() >= 4);
  CHECK(ids(f) == 0);
}

TEST_CASE("events that were not read are gone with their id, and requests among them are refused") {
  ServerFixture f;
  Channel server(f), client(f);
  const std::uint32_t listener = server.listen(1, 7000);
  const std::uint32_t other = server.listen(2, 7001);
  client.connect(3, 7000);
  REQUIRE(server.has_event(20000));
  client.connect(4, 7001);
  REQUIRE(eventually([&] {
    int bytes = 0;
    return ::ioctl(server.events_fd(), FIONREAD, &bytes) == 0 && bytes == 2 * 336;
  }));
  CHECK(server.destroy(listener).as<std::uint32_t>() == 0);  // nobody has read of it
  const ucm::EventRecord refused = client.next();
  CHECK(refused.event == kRejected);
  CHECK(refused.uid == 3);
  CHECK(server.next().uid == 2);  // the other listener's is still there
  CHECK_FALSE(server.has_event());
  CHECK(server.destroy(other).as<std::uint32_t>() == 1);
}

TEST_CASE("an id moves to another channel, and its unread events with it") {
  ServerFixture f;
  Channel from(f), to(f), client(f);
  const std::uint32_t listener = from.listen(1, 7000);
  client.connect(3, 7000);
  CHECK(from.next().event == kConnectRequest);
  client.connect(4, 7000);
  REQUIRE(from.has_event(20000));
  const ucm::MigrateId move{0, listener, 0};
  CHECK(to.command(Command::kMigrateId, move, 4, {}, from.inode() + 1000).error == EINVAL);
  const TestReply moved = to.command(Command::kMigrateId, move, 4, {}, from.inode());
  REQUIRE(moved.error == 0);
  CHECK(moved.as<std::uint32_t>() == 1);  // that was read
  CHECK_FALSE(from.has_event());
  const ucm::EventRecord request = to.next();
  CHECK(request.event == kConnectRequest);
  CHECK(to.accept(request.id, 9, true).error == 0);  // it has come along
  CHECK(from.destroy(listener).error == EINVAL);
  CHECK(to.command(Command::kMigrateId, move, 4, {}, from.inode()).error == EINVAL);
  CHECK(to.destroy(listener).as<std::uint32_t>() == 2);
}

TEST_CASE("commands that are wrong get the errno that the kernel gives") {
  ServerFixture f;
  Channel channel(f), other(f);
  const std::uint32_t id = channel.create(1);
  CHECK(channel.destroy(id + 100).error == ENOENT);
  CHECK(other.destroy(id).error == EINVAL);
  CHECK(channel.command(Command::kGetOption, ucm::Disconnect{id}).error == ENOSYS);
  CHECK(channel.command(Command::kGetEvent, ucm::GetEvent{0}, 336).error == EINVAL);
  CHECK(channel.command(static_cast<Command>(99), ucm::GetEvent{0}).error == EINVAL);
  CHECK(channel.raw(Command::kDestroyId, std::vector<std::byte>(8), 4).error == EINVAL);
  CHECK(channel.command(Command::kDestroyId, ucm::DestroyId{0, id, 0}, 3).error == ENOSPC);
  ucm::CreateId create{};
  create.port_space = 0x0777;
  CHECK(channel.command(Command::kCreateId, create).error == EINVAL);
  // An address of InfiniBand's own, as librdmacm tries first.
  ucm::Bind bind{};
  bind.id = id;
  bind.address_bytes = sizeof(ucm::SockAddrIb);
  bind.address.bytes[0] = ucm::kInfiniband;
  CHECK(channel.command(Command::kBind, bind).error == EINVAL);
  CHECK(channel.command(Command::kBindIp, ucm::BindIp{0, address(0x01020304, 5), id}).error == EADDRNOTAVAIL);
  CHECK(channel.command(Command::kConnect, ucm::Connect{{}, id, 0, {}}).error == EINVAL);
  CHECK(channel.command(Command::kInitQpAttr, ucm::InitQpAttr{0, id, 77}, sizeof(ucm::QpAttr)).error ==
        EINVAL);
  CHECK(channel.command(Command::kNotify, ucm::Notify{id, 17}).error == EINVAL);
  ucm::Reject reject{};
  reject.id = id;
  reject.reason = 3;
  CHECK(channel.command(Command::kReject, reject).error == EINVAL);
  CHECK(channel.command(Command::kLeaveMulticast, ucm::DestroyId{0, 5, 0}).error == ENOENT);

  const auto set = [&](std::uint32_t level, std::uint32_t name, std::size_t bytes) {
    const ucm::SetOption option{0, id, level, name, static_cast<std::uint32_t>(bytes)};
    return channel.command(Command::kSetOption, option, 0, std::vector<std::byte>(bytes)).error;
  };
  CHECK(set(ucm::kLevelId, ucm::kOptionTos, 1) == 0);
  CHECK(set(ucm::kLevelId, ucm::kOptionTos, 4) == EINVAL);
  CHECK(set(ucm::kLevelId, ucm::kOptionReuseAddress, 4) == 0);
  CHECK(set(ucm::kLevelId, 9, 4) == ENOSYS);
  CHECK(set(ucm::kLevelIb, 1, 72) == ENOSYS);
  // A value that is not as long as it is said to be.
  CHECK(channel.command(Command::kSetOption, ucm::SetOption{0, id, 0, 1, 4}, 0, std::vector<std::byte>(3))
            .error == EINVAL);
  CHECK(channel.client().call(MessageKind::kRdmaCm, std::vector<std::byte>(5)).error == EINVAL);
  CHECK(channel.client().call(MessageKind::kOpenRdmaCm).error == EINVAL);
  CHECK(channel.client().open_device().error == EINVAL);
  CHECK(channel.destroy(id).error == 0);
}

TEST_CASE("any bytes are answered, and a channel that ends leaves nothing") {
  ServerFixture f;
  const std::size_t before = open_fds();
  {
    Channel channel(f);
    std::uint32_t noise = 1;
    for (int i = 0; i < 3000; ++i) {
      std::vector<std::byte> core(noise % 400);
      for (std::byte& byte : core) {
        noise = noise * 1664525 + 1013904223;
        byte = static_cast<std::byte>(noise >> 24 < 128 ? noise >> 28 : 0);
      }
      noise = noise * 1664525 + 1013904223;
      CHECK_FALSE(channel.raw(static_cast<Command>((noise >> 8) % 24), core, noise % 300).closed);
    }
    channel.listen(1, 7005);
  }
  CHECK(eventually([&] { return ids(f) == 0; }));
  CHECK(fds_back_to(before));
}

TEST_CASE("a thread that waits for an event is not told that the device was closed") {
  ServerFixture f;
  const std::size_t before = open_fds();
  {
    Channel channel(f);
    const UniqueFd reader = UniqueFd::duplicate(channel.events_fd());
    channel.client().disconnect();
    channel.close_events();
    REQUIRE(eventually([&] {
      return f.connect().admin(R"({"op":"show","what":"cm"})").text().find("\"channels\":0") !=
             std::string::npos;
    }));
    pollfd ready{reader.get(), POLLIN, 0};
    CHECK(::poll(&ready, 1, 0) == 0);
  }
  CHECK(fds_back_to(before));
}

TEST_CASE("a channel is opened for the NICs of a view") {
  ServerFixture f;
  TestClient wrong = f.connect();
  const std::string path = "/no/such/view";
  CHECK(wrong.call(MessageKind::kOpenRdmaCm, std::as_bytes(std::span(path))).error == ENODEV);

  TestClient only = f.connect();
  const auto view =
      nlohmann::json::parse(only.admin(R"({"op":"view","nics":["rxe1"]})").text())["path"].get<std::string>();
  REQUIRE(only.call(MessageKind::kOpenRdmaCm, std::as_bytes(std::span(view))).error == 0);
}

}  // namespace
}  // namespace roci::shim
