#include "dpdk_port/udp_port.h"

#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <rte_mbuf.h>

#include "dpdk_port/mbufs.h"
#include "dpdk_port/udp_datagram.h"
#include "dpdk_port/udp_holder.h"
#include "emulator/engine.h"
#include "emulator/multicast.h"
#include "verbs_shim/server/unique_fd.h"

namespace roci::dpdk_port {
namespace {

using proto::Gid;
using proto::Unexpected;
using shim::UniqueFd;

constexpr std::size_t kUdpBurst = 32;  // datagrams a call
constexpr std::size_t kSenders = 16;   // sockets to send from, a source port each
constexpr std::uint16_t kFirstSenderPort = 0xC000;
constexpr int kPortTries = 64;               // for a free one, before the kernel chooses
constexpr int kSocketBufferBytes = 4 << 20;  // asked for; the kernel has a limit of its own
constexpr std::size_t kMaxGroups = 256;      // multicast groups; a socket each
constexpr auto kSendPatience = std::chrono::milliseconds(10);
constexpr std::size_t kSpillBytes = 65536;                      // a datagram has no more
constexpr std::size_t kMaxSegments = 64, kMaxGsoBytes = 65000;  // the kernel's limits for UDP_SEGMENT
constexpr int kUdpSegment = 103, kUdpGro = 104;
constexpr int kNoCheck6Rx = 102;  // UDP_NO_CHECK6_RX

std::string udp_error(const char* what) {
  return fmt::format("{}: {}", what, std::generic_category().message(errno));
}

// A socket address of either family.
struct SocketAddress {
  SocketAddress() = default;
  SocketAddress(const Gid& gid, std::uint16_t port) {
    if (gid.is_ipv4()) {
      auto& in = reinterpret_cast<sockaddr_in&>(storage);
      in.sin_family = AF_INET;
      in.sin_port = htons(port);
      std::memcpy(&in.sin_addr, gid.bytes.data() + 12, 4);
      length = sizeof in;
    } else {
      storage.sin6_family = AF_INET6;
      storage.sin6_port = htons(port);
      std::memcpy(&storage.sin6_addr, gid.bytes.data(), 16);
      length = sizeof storage;
    }
  }
  [[nodiscard]] Gid gid() const {
    if (storage.sin6_family == AF_INET)
      return Gid::from_ipv4(ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr));
    Gid gid;
    std::memcpy(gid.bytes.data(), &storage.sin6_addr, 16);
    return gid;
  }
  [[nodiscard]] std::uint16_t port() const { return ntohs(storage.sin6_port); }  // both have it there
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  sockaddr_in6 storage{};
  socklen_t length = sizeof storage;
};

bool set_option(const UniqueFd& fd, int level, int name, int value) {
  return setsockopt(fd.get(), level, name, &value, sizeof value) == 0;
}

// Unbound. Empty: errno says why.
UniqueFd make_udp_socket(bool is_ipv6) {
  return UniqueFd(socket(is_ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Whole datagrams only, and with IPv4 an IP id of 0.
bool send_unfragmented(const UniqueFd& fd, bool is_ipv6) {
  return is_ipv6 ? set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO) &&
                       set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1)
                 : set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
}

// A buffer as large as may be: beyond the limit of ordinary users, if we are more.
void enlarge_buffer(const UniqueFd& fd, int forced, int ordinary) {
  if (!set_option(fd, SOL_SOCKET, forced, kSocketBufferBytes))
    (void)set_option(fd, SOL_SOCKET, ordinary, kSocketBufferBytes);
}

// Three control messages with at most an int each: traffic class, hop limit, and of several datagrams in one
// the length of each.
struct alignas(cmsghdr) Control {
  static constexpr std::size_t kPlainBytes = 2 * CMSG_SPACE(sizeof(int)),
                               kBytes = 3 * CMSG_SPACE(sizeof(int));
  std::array<char, kBytes> bytes{};
};

class UdpPort final : public Port {
 public:
  UdpPort(const UdpPortConfig& config, rte_mempool* pool)
      : config_(config), is_ipv6_(!config.address.is_ipv4()), pool_(pool), gso_(config.gso) {
    ready_.reserve(kUdpBurst * kMaxSegments);
  }

  ~UdpPort() override {
    rte_pktmbuf_free_bulk(waiting_.data() + empty_, static_cast<unsigned>(kUdpBurst - empty_));
    for (std::size_t i = handed_out_; i < ready_.size(); ++i)
      rte_pktmbuf_free(ready_[i]);
  }

  // The reason why not, or empty.
  std::string open() {
    epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    group_epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_ || !group_epoll_) return udp_error("epoll");
    receiver_ = make_udp_socket(is_ipv6_);
    if (!receiver_) return udp_error("UDP socket");
    if (auto error = prepare_receiver(receiver_); !error.empty()) return error;
    const SocketAddress here(config_.address, proto::kRoceV2Port);
    if (bind(receiver_.get(), here.get(), here.length) != 0) {
      if (errno == EADDRINUSE)
        return fmt::format("UDP port 4791 of {} is taken by {}", to_text(config_.address),
                           udp_port_holder(config_.address, proto::kRoceV2Port));
      return udp_error("UDP port 4791");
    }
    if (!watch(epoll_, receiver_) || !watch(epoll_, group_epoll_)) return udp_error("epoll");
    for (std::size_t i = 0; i < kSenders; ++i) {
      if (auto error = open_sender(senders_[i], static_cast<std::uint16_t>(kFirstSenderPort + i));
          !error.empty())
        return error;
    }
    for (std::size_t i = 0; i < kUdpBurst; ++i)
      prepare_send(i);
    return {};
  }

  std::size_t receive(rte_mbuf** out, std::size_t max) override {
    if (handed_out_ == ready_.size()) {
      ready_.clear();
      handed_out_ = 0;
      receive_from(receiver_, config_.address);
      if (has_groups_.load(std::memory_order_relaxed)) receive_from_groups();
    }
    const std::size_t count = std::min(max, ready_.size() - handed_out_);
    std::copy_n(ready_.begin() + static_cast<std::ptrdiff_t>(handed_out_), count, out);
    handed_out_ += count;
    return count;
  }

  // A socket a group, bound to it: the kernel is in the group already (kernel_groups.h).
  std::vector<std::string> follow_groups(std::uint32_t shard, std::span<const Gid> groups) override {
    const std::lock_guard lock(groups_mutex_);
    wanted_groups_[shard].assign(groups.begin(), groups.end());
    const auto is_wanted = [this](const Gid& group) {
      return std::any_of(wanted_groups_.begin(), wanted_groups_.end(), [&](const auto& one) {
        return std::find(one.second.begin(), one.second.end(), group) != one.second.end();
      });
    };
    std::erase_if(groups_, [&](const auto& one) { return !is_wanted(one.gid); });
    std::vector<std::string> problems;
    for (const Gid& group : groups) {
      if (group.is_ipv4() == is_ipv6_ ||
          std::any_of(groups_.begin(), groups_.end(), [&](const auto& one) { return one.gid == group; }))
        continue;
      UniqueFd fd;
      auto error = groups_.size() < kMaxGroups ? open_group(group, fd) : std::string("too many groups");
      if (error.empty())
        groups_.push_back({group, std::move(fd)});
      else
        problems.push_back(fmt::format("datagrams to {} are not received: {}", to_text(group), error));
    }
    has_groups_.store(!groups_.empty(), std::memory_order_relaxed);
    return problems;
  }

  std::size_t send(rte_mbuf** frames, std::size_t count) override {
    std::size_t done = 0;
    while (done < count) {
      const std::size_t messages = fill_messages(frames + done, std::min(count - done, kUdpBurst));
      if (messages == 0) {
        add(unsendable_);
        rte_pktmbuf_free(frames[done++]);
        continue;
      }
      const int sent = sendmmsg(sender_->fd.get(), to_send_.data(), static_cast<unsigned>(messages),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
      const int error = errno;
      if (sent > 0) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(sent); ++i) {
          if (frames_in_[i] > 1) add(gso_runs_);
          done += free_frames(frames + done, frames_in_[i]);
        }
        is_stuck_ = false;
      } else if (error == EAGAIN && !has_lost_patience()) {
        add(send_waits_);
        return done;
      } else if (frames_in_[0] > 1 && (error == EIO || error == EINVAL)) {
        gso_ = false;               // the kernel or the way out cannot: one by one from now on
      } else if (error != EINTR) {  // of the first message: no route, too long, refused by a filter...
        add(send_errors_);
        done += free_frames(frames + done, frames_in_[0]);
      }
    }
    return done;
  }

  [[nodiscard]] int wake_fd() const override { return epoll_.get(); }
  void prepare_to_sleep() override {}  // what was not read stays readable
  [[nodiscard]] int kernel_groups_interface() const override { return config_.interface_index; }

  [[nodiscard]] std::vector<PortCounter> counters() const override {
    std::array<std::uint32_t, SK_MEMINFO_VARS> memory{};
    socklen_t length = sizeof memory;
    (void)getsockopt(receiver_.get(), SOL_SOCKET, SO_MEMINFO, memory.data(), &length);
    const auto value = [](const std::atomic<std::uint64_t>& counter) {
      return counter.load(std::memory_order_relaxed);
    };
    return {{"icrc_predicted", value(icrc_predicted_)},
            {"icrc_solved", value(icrc_solved_)},
            {"icrc_unsolved", value(icrc_unsolved_)},
            {"too_long_datagrams", value(too_long_)},
            {"empty_datagrams", value(empty_datagrams_)},
            {"no_buffer", value(no_buffer_)},
            {"receive_overflows", memory[SK_MEMINFO_DROPS]},
            {"receive_errors", value(receive_errors_)},
            {"send_errors", value(send_errors_)},
            {"send_waits", value(send_waits_)},
            {"unsendable_frames", value(unsendable_)},
            {"gso_runs", value(gso_runs_)}};
  }

 private:
  struct Sender {
    UniqueFd fd;
    std::uint16_t port = 0;
  };
  using Counter = std::atomic<std::uint64_t>;

  static void add(Counter& counter) {
    counter.store(counter.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  struct Group {
    Gid gid;
    UniqueFd fd;
  };

  [[nodiscard]] static bool watch(const UniqueFd& epoll, const UniqueFd& fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd.get();
    return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0;
  }

  // Of several sockets that are bound to a group, each is given a copy.
  [[nodiscard]] std::string open_group(const Gid& group, UniqueFd& fd) const {
    fd = make_udp_socket(is_ipv6_);
    if (!fd) return udp_error("UDP socket");
    if (auto error = prepare_receiver(fd); !error.empty()) return error;
    SocketAddress here(group, proto::kRoceV2Port);
    if (is_ipv6_) here.storage.sin6_scope_id = static_cast<std::uint32_t>(config_.interface_index);
    if (!set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) || bind(fd.get(), here.get(), here.length) != 0)
      return udp_error("UDP port 4791");
    return watch(group_epoll_, fd) ? std::string() : udp_error("epoll");
  }

  [[nodiscard]] std::string prepare_receiver(const UniqueFd& fd) const {
    const bool good =
        is_ipv6_ ? set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) &&
                       set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1) &&
                       set_option(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1) &&
                       set_option(fd, IPPROTO_UDP, kNoCheck6Rx, 1)  // legal for RoCE v2
                 : set_option(fd, IPPROTO_IP, IP_RECVTOS, 1) && set_option(fd, IPPROTO_IP, IP_RECVTTL, 1);
    if (!good) return udp_error("UDP socket options");
    (void)set_option(fd, IPPROTO_UDP, kUdpGro, 1);  // Linux 5.0; else they come one by one
    enlarge_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF);
    return {};
  }

  // Bound to the wanted port or one near it, else to any.
  [[nodiscard]] std::string open_sender(Sender& sender, std::uint16_t wanted) const {
    sender.fd = make_udp_socket(is_ipv6_);
    // Nobody answers to these ports.
    sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog filter{1, &nothing};
    if (!sender.fd || !send_unfragmented(sender.fd, is_ipv6_) ||
        setsockopt(sender.fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0)
      return udp_error("UDP socket");
    enlarge_buffer(sender.fd, SO_SNDBUFFORCE, SO_SNDBUF);
    const ip_mreqn interface { {}, {}, config_.interface_index };
    const bool multicast =
        is_ipv6_
            ? set_option(sender.fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, config_.interface_index)
            : setsockopt(sender.fd.get(), IPPROTO_IP, IP_MULTICAST_IF, &interface, sizeof interface) == 0;
    if (!multicast) return udp_error("interface for multicast");
    bool bound = false;
    for (int i = 0; i <= kPortTries && !bound; ++i) {
      const auto port =
          i == kPortTries ? std::uint16_t{0} : static_cast<std::uint16_t>(wanted + i * int{kSenders});
      const SocketAddress here(config_.address, port);
      bound = bind(sender.fd.get(), here.get(), here.length) == 0;
      if (!bound && errno != EADDRINUSE) break;
    }
    if (!bound) return udp_error("UDP port to send from");
    SocketAddress bound_to;
    if (getsockname(sender.fd.get(), reinterpret_cast<sockaddr*>(&bound_to.storage), &bound_to.length) != 0)
      return udp_error("UDP socket");
    sender.port = bound_to.port();
    return {};
  }

  // ---- receiving -----------------------------------------------------------------------------------

  // Reads a burst into ready_.
  void receive_from(const UniqueFd& fd, const Gid& destination) {
    if (!refill()) return;
    const int got = recvmmsg(fd.get(), received_.data(), kUdpBurst, MSG_DONTWAIT, nullptr);
    if (got <= 0) {
      if (got < 0 && errno != EAGAIN && errno != EINTR) add(receive_errors_);
      return;
    }
    empty_ = static_cast<std::size_t>(got);
    for (std::size_t i = 0; i < empty_; ++i) {
      IncomingDatagram datagram;
      datagram.source = received_from_[i].gid();
      datagram.destination = destination;
      datagram.source_port = received_from_[i].port();
      datagram.source_mac = emulator::made_up_mac(datagram.source);
      datagram.destination_mac =
          emulator::is_multicast(destination) ? emulator::multicast_mac(destination) : config_.mac;
      make_frames(i, datagram);
    }
  }

  void receive_from_groups() {
    std::array<epoll_event, 8> events;
    const int count = epoll_wait(group_epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count <= 0) return;
    const std::lock_guard lock(groups_mutex_);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const auto group = std::find_if(groups_.begin(), groups_.end(),
                                      [&](const Group& one) { return one.fd.get() == events[i].data.fd; });
      if (group != groups_.end()) receive_from(group->fd, group->gid);
    }
  }

  // The first `empty_` places have no mbuf. False: there are none to be had.
  bool refill() {
    if (empty_ == 0) return true;
    if (rte_pktmbuf_alloc_bulk(pool_, waiting_.data(), static_cast<unsigned>(empty_)) != 0) return false;
    const std::size_t headers = headers_before_bth(is_ipv6_);
    for (std::size_t i = 0; i < empty_; ++i) {
      received_iov_[i] = {iovec{rte_pktmbuf_mtod(waiting_[i], std::byte*) + headers,
                                rte_pktmbuf_tailroom(waiting_[i]) - headers},
                          iovec{spill_of(i), kSpillBytes}};
      msghdr& message = received_[i].msg_hdr;
      message = {};
      message.msg_name = &received_from_[i].storage;
      message.msg_namelen = sizeof received_from_[i].storage;
      message.msg_iov = received_iov_[i].data();
      message.msg_iovlen = received_iov_[i].size();
      message.msg_control = received_control_[i].bytes.data();
      message.msg_controllen = Control::kBytes;
    }
    empty_ = 0;
    return true;
  }

  // Of the message in place `i`, whose mbuf it takes: a datagram, or several of one length, the last perhaps
  // shorter, that the kernel has put together.
  void make_frames(std::size_t i, IncomingDatagram& datagram) {
    rte_mbuf* const mbuf = waiting_[i];
    const std::size_t headers = headers_before_bth(is_ipv6_);
    const std::size_t room = received_iov_[i][0].iov_len, total = received_[i].msg_len;
    const std::size_t each = read_control(received_[i].msg_hdr, datagram).value_or(total);
    // What we sent to a group ourselves is handed back; its other QPs here have it already.
    const bool is_own = datagram.source == config_.address;
    const bool is_too_long = each > room || (received_[i].msg_hdr.msg_flags & MSG_TRUNC) != 0;
    if (is_own || is_too_long || each == 0) {
      if (!is_own) add(is_too_long ? too_long_ : empty_datagrams_);
      rte_pktmbuf_free(mbuf);
      return;
    }
    make_frame(mbuf, std::min(each, total), datagram);
    const std::byte* const inside = rte_pktmbuf_mtod(mbuf, const std::byte*) + headers;
    for (std::size_t at = each; at < total; at += each) {
      const std::size_t bytes = std::min(each, total - at);
      rte_mbuf* const next = rte_pktmbuf_alloc(pool_);
      if (next == nullptr) {
        add(no_buffer_);
        continue;
      }
      std::byte* const to = rte_pktmbuf_mtod(next, std::byte*) + headers;
      const std::size_t first = at < room ? std::min(bytes, room - at) : 0;
      std::memcpy(to, inside + at, first);
      std::memcpy(to + first, spill_of(i) + (at + first - room), bytes - first);
      make_frame(next, bytes, datagram);
    }
  }

  void make_frame(rte_mbuf* mbuf, std::size_t payload_bytes, const IncomingDatagram& datagram) {
    const std::size_t bytes = headers_before_bth(is_ipv6_) + payload_bytes;
    mbuf->data_len = static_cast<std::uint16_t>(bytes);
    mbuf->pkt_len = static_cast<std::uint32_t>(bytes);
    switch (builder_.build({rte_pktmbuf_mtod(mbuf, std::byte*), bytes}, datagram)) {
      case IcrcVerdict::kPredicted:
        add(icrc_predicted_);
        break;
      case IcrcVerdict::kSolved:
        add(icrc_solved_);
        break;
      case IcrcVerdict::kUnsolved:
        add(icrc_unsolved_);
        break;
      case IcrcVerdict::kExact:
        break;
    }
    ready_.push_back(mbuf);  // the engine judges, and counts
  }

  // Of several datagrams in one, the bytes of each.
  static std::optional<std::size_t> read_control(const msghdr& message, IncomingDatagram& datagram) {
    std::optional<std::size_t> each;
    for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
         control = CMSG_NXTHDR(const_cast<msghdr*>(&message), control)) {
      int value = 0;  // IPv4's traffic class is a byte, all else an int
      if (control->cmsg_len == CMSG_LEN(1))
        value = *CMSG_DATA(control);
      else
        std::memcpy(&value, CMSG_DATA(control), sizeof value);
      if (control->cmsg_level == IPPROTO_UDP)
        each = static_cast<std::size_t>(value);
      else if (control->cmsg_type == (control->cmsg_level == IPPROTO_IP ? IP_TOS : IPV6_TCLASS))
        datagram.traffic_class = static_cast<std::uint8_t>(value);
      else
        datagram.hop_limit = static_cast<std::uint8_t>(value);
    }
    return each;
  }

  [[nodiscard]] std::byte* spill_of(std::size_t i) const { return spill_.get() + i * kSpillBytes; }

  static std::size_t free_frames(rte_mbuf** frames, std::size_t count) {
    rte_pktmbuf_free_bulk(frames, static_cast<unsigned>(count));
    return count;
  }

  // ---- sending -------------------------------------------------------------------------------------

  // What is the same for every datagram sent in place `i`.
  void prepare_send(std::size_t i) {
    msghdr& message = to_send_[i].msg_hdr;
    message.msg_name = &send_to_[i].storage;
    message.msg_control = send_control_[i].bytes.data();
    message.msg_controllen = Control::kBytes;
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    for (const int type : {is_ipv6_ ? IPV6_TCLASS : IP_TOS, is_ipv6_ ? IPV6_HOPLIMIT : IP_TTL}) {
      control->cmsg_level = is_ipv6_ ? IPPROTO_IPV6 : IPPROTO_IP;
      control->cmsg_type = type;
      control->cmsg_len = CMSG_LEN(sizeof(int));
      control = CMSG_NXTHDR(&message, control);
    }
    control->cmsg_level = IPPROTO_UDP;
    control->cmsg_type = kUdpSegment;
    control->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
  }

  // Messages of the first frames that go out by one socket, sender_; 0: no socket can send the first.
  std::size_t fill_messages(rte_mbuf** frames, std::size_t count) {
    std::size_t messages = 0;
    std::optional<OutgoingDatagram> first;  // of the last message
    std::size_t segments = 0, bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto datagram = parse_outgoing(bytes_of(frames[i]));
      if (!datagram || datagram->source != config_.address) break;
      Sender* const sender = &senders_[datagram->source_port % kSenders];
      if (messages != 0 && sender != sender_) break;
      sender_ = sender;
      const std::size_t length = datagram->payload.size() + proto::Icrc::kSize;
      const bool joins =
          gso_ && first && segments != kMaxSegments && bytes + length <= kMaxGsoBytes &&
          bytes == segments * (first->payload.size() + proto::Icrc::kSize) &&
          datagram->payload.size() <= first->payload.size() && datagram->destination == first->destination &&
          datagram->traffic_class == first->traffic_class && datagram->hop_limit == first->hop_limit;
      if (!joins) {
        first = datagram;
        segments = bytes = 0;
        start_message(messages++, i, *datagram);
      }
      // What the kernel sends as one has id 0, what it cuts has its number.
      send_icrc_[i] = datagram->icrc_as_sent(sender->port, {static_cast<std::uint16_t>(segments), true});
      send_iov_[i] = {iovec{const_cast<std::byte*>(datagram->payload.data()), datagram->payload.size()},
                      iovec{send_icrc_[i].data(), send_icrc_[i].size()}};
      bytes += length;
      frames_in_[messages - 1] = ++segments;
      msghdr& message = to_send_[messages - 1].msg_hdr;
      message.msg_iovlen = segments * send_iov_[i].size();
      if (segments == 2) message.msg_controllen = Control::kBytes;  // with the length of each
    }
    return messages;
  }

  // In place `i`, and with it the length of each if it becomes several, which counts from the second on.
  void start_message(std::size_t i, std::size_t first_frame, const OutgoingDatagram& datagram) {
    msghdr& message = to_send_[i].msg_hdr;
    send_to_[i] = SocketAddress(datagram.destination, proto::kRoceV2Port);
    message.msg_namelen = send_to_[i].length;
    message.msg_iov = send_iov_[first_frame].data();  // that of the next frame follows in memory
    message.msg_controllen = Control::kBytes;
    // A hop limit of 0 is refused; 1 comes as far.
    const int values[] = {datagram.traffic_class, std::max<int>(datagram.hop_limit, 1)};
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    for (const int value : values) {
      std::memcpy(CMSG_DATA(control), &value, sizeof value);
      control = CMSG_NXTHDR(&message, control);
    }
    const auto each = static_cast<std::uint16_t>(datagram.payload.size() + proto::Icrc::kSize);
    std::memcpy(CMSG_DATA(control), &each, sizeof each);
    message.msg_controllen = Control::kPlainBytes;
  }

  // One socket's buffer may be full for long, of datagrams to a peer that the kernel looks for; the others'
  // are not to wait behind it.
  bool has_lost_patience() {
    const auto now = std::chrono::steady_clock::now();
    if (!std::exchange(is_stuck_, true)) stuck_since_ = now;
    return now - stuck_since_ >= kSendPatience;
  }

  const UdpPortConfig config_;
  const bool is_ipv6_;
  rte_mempool* const pool_;
  UniqueFd epoll_, receiver_;
  std::array<Sender, kSenders> senders_;
  FrameBuilder builder_;

  std::mutex groups_mutex_;
  std::map<std::uint32_t, std::vector<Gid>> wanted_groups_;  // by shard
  std::vector<Group> groups_;
  UniqueFd group_epoll_;
  std::atomic<bool> has_groups_{false};

  std::size_t empty_ = kUdpBurst;
  std::array<rte_mbuf*, kUdpBurst> waiting_{};
  std::array<mmsghdr, kUdpBurst> received_{};
  std::array<std::array<iovec, 2>, kUdpBurst> received_iov_{};  // mbuf, spill
  std::array<SocketAddress, kUdpBurst> received_from_;
  std::array<Control, kUdpBurst> received_control_;

  // Behind what the first mbuf of a message takes.
  const std::unique_ptr<std::byte[]> spill_{new std::byte[kUdpBurst * kSpillBytes]};
  std::vector<rte_mbuf*> ready_;  // frames, of which so many are handed out
  std::size_t handed_out_ = 0;

  bool gso_;
  Sender* sender_ = nullptr;
  std::array<mmsghdr, kUdpBurst> to_send_{};
  std::array<std::size_t, kUdpBurst> frames_in_{};  // of a message
  std::array<std::array<iovec, 2>, kUdpBurst> send_iov_{};
  std::array<SocketAddress, kUdpBurst> send_to_;
  std::array<Control, kUdpBurst> send_control_;
  std::array<std::array<std::byte, proto::Icrc::kSize>, kUdpBurst> send_icrc_{};
  bool is_stuck_ = false;
  std::chrono::steady_clock::time_point stuck_since_;

  Counter icrc_predicted_{0}, icrc_solved_{0}, icrc_unsolved_{0}, too_long_{0}, empty_datagrams_{0},
      no_buffer_{0}, gso_runs_{0}, receive_errors_{0}, send_errors_{0}, send_waits_{0}, unsendable_{0};
};

}  // namespace

Parsed<std::unique_ptr<Port>> open_udp(const UdpPortConfig& config, rte_mempool* pool) {
  auto port = std::make_unique<UdpPort>(config, pool);
  if (auto error = port->open(); !error.empty()) return Unexpected{std::move(error)};
  return std::unique_ptr<Port>(std::move(port));
}

}  // namespace roci::dpdk_port
