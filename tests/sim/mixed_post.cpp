// Mixed programs: requests by chance, and what each must come to.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/sim/mixed_state.h"

namespace roci::sim::mixed {

std::span<std::byte> MixedProgram::slot_bytes(const Party& party, std::uint32_t slot) {
  return party.client->bytes(party.arena, std::uint64_t{slot} * kSlotBytes, kSlotBytes);
}

// What a message with that tag holds.
void MixedProgram::write_content(std::uint64_t tag, std::span<std::byte> out) {
  std::memcpy(out.data(), noise_of(tag).data(), out.size());
  if (out.size() >= kTagBytes) std::memcpy(out.data(), &tag, kTagBytes);
}

bool MixedProgram::is_content(std::uint64_t tag, std::span<const std::byte> bytes) {
  if (bytes.size() < kTagBytes) return std::equal(bytes.begin(), bytes.end(), noise_of(tag).begin());
  return std::memcmp(bytes.data(), &tag, kTagBytes) == 0 &&
         std::memcmp(bytes.data() + kTagBytes, noise_of(tag).data() + kTagBytes, bytes.size() - kTagBytes) ==
             0;
}

std::span<const std::byte> MixedProgram::noise_of(std::uint64_t tag) {
  return noise().subspan(
      static_cast<std::size_t>(tag * 0x9E3779B97F4A7C15 % (noise().size() - kTargetBytes)));
}

std::uint32_t MixedProgram::take_slot(Party& party, std::uint64_t tag) {
  const std::uint32_t slot = party.free_slots.back();
  party.free_slots.pop_back();
  write_content(tag, slot_bytes(party, slot));
  return slot;
}

// The slot in up to three pieces.
std::vector<Sge> MixedProgram::pieces(const Party& party, std::uint32_t slot, std::uint32_t length) {
  std::vector<Sge> sges;
  std::uint64_t at = std::uint64_t{slot} * kSlotBytes;
  for (std::size_t left = random_.index(3) + 1; left != 0; --left) {
    const std::uint32_t bytes = left == 1 ? length : random_.between32(0, length);
    sges.push_back(party.arena.sge(at, bytes));
    at += bytes;
    length -= bytes;
  }
  return sges;
}

std::uint32_t MixedProgram::choose_length() {
  const std::uint32_t mtu = proto::bytes_of(mtu_);
  switch (random_.index(4)) {
    case 0:
      return random_.between32(kTagBytes, 64);
    case 1:
      return std::min(kMaxMessage, random_.between32(1, 3) * mtu - 1 + random_.between32(0, 2));
    default:
      return random_.between32(kTagBytes,
                               random_.chance(200'000) ? kMaxMessage : std::min(kMaxMessage, 3 * mtu));
  }
}

void MixedProgram::post(End& end) {
  Party& party = *end.party;
  if (end.to_post == 0 || end.is_broken || end.has_failed || party.free_slots.size() < 8 ||
      end.qp->send_queued() + 2 > kQueue)
    return;
  SendWr wr;
  Pending pending;
  wr.wr_id = pending.wr_id = next_id_++;
  if (wr.flags = 0; random_.chance(300'000)) wr.flags = kSolicited;
  pending.tag = next_tag_++;
  pending.length = choose_length();
  const auto unsignaled = static_cast<std::size_t>(std::count_if(
      end.pending.rbegin(), end.pending.rend(), [](const Pending& one) { return !one.is_signaled; }));
  const bool must_signal = unsignaled > 3 || end.to_post == 1 || end.qp->send_queued() + 4 > kQueue;
  pending.is_signaled = end.signal_all || must_signal || random_.chance(600'000);
  if (pending.is_signaled) wr.flags |= kSignaled;
  bool is_made = false;
  switch (end.type) {
    case QpType::kRc:
      is_made = make_reliable(end, wr, pending);
      break;
    case QpType::kUc:
      is_made = make_unreliable(end, wr, pending);
      break;
    case QpType::kUd:
    case QpType::kGsi:
      is_made = make_datagram(end, wr, pending);
      break;
  }
  if (!is_made) return;
  --end.to_post;
  if (!end.qp->post_send(wr)) return fail(&end, "post_send is refused");
  ++result_.operations;
  result_.unsignaled += pending.is_signaled ? 0 : 1;
  result_.bytes += pending.length;
  end.pending.push_back(std::move(pending));
}

void MixedProgram::send_from_slot(End& end, SendWr& wr, Pending& pending) {
  pending.slot = take_slot(*end.party, pending.tag);
  wr.sges = pieces(*end.party, pending.slot, pending.length);
  if (pending.length <= 64 && random_.chance(500'000)) wr.flags |= kInline;
}

bool MixedProgram::make_reliable(End& end, SendWr& wr, Pending& pending) {
  End& peer = *end.peer;
  if (make_local(end, wr, pending)) return true;
  // A window that is bound serves half of the accesses.
  const bool by_window = peer.window == Window::kBound && random_.chance(500'000);
  wr.rkey = by_window ? peer.mw.rkey : peer.target.rkey;
  Message message{pending.tag, pending.length};
  std::uint32_t offset = random_.between32(0, kTargetBytes - kMaxMessage);
  std::byte* const there = peer.model.data() + offset;
  const auto conflicts = [&](std::uint32_t bytes) {
    return std::any_of(end.pending.begin(), end.pending.end(), [&](const Pending& one) {
      return one.opcode == kWcRead && one.offset < offset + bytes && offset < one.offset + one.length;
    });
  };
  const bool may_invalidate = peer.window == Window::kBound && peer.mw_type == MwType::kType2;
  switch (may_invalidate && random_.chance(200'000) ? 2 : random_.index(10)) {
    case 0:
      wr.opcode = kWrSend;
      break;
    case 1:
      wr.opcode = kWrSendImm;
      message.has_immediate = true;
      break;
    case 2:
      wr.opcode = kWrSend;
      // READs that use the window must be over: a fence.
      if (may_invalidate) {
        wr.opcode = kWrSendInvalidate;
        wr.flags |= kFence;
        wr.invalidate = message.key = peer.mw.rkey;
        message.invalidates = true;
        peer.window = Window::kInvalidating;
      }
      break;
    case 3:
    case 4:
      wr.opcode = random_.chance(500'000) ? kWrWrite : kWrWriteImm;
      pending.opcode = kWcWrite;
      pending.uses_window = by_window;
      wr.remote_address = peer.target.iova + offset;
      message.is_write = true;
      message.has_immediate = wr.opcode == kWrWriteImm;
      if (conflicts(pending.length)) wr.flags |= kFence;
      write_content(pending.tag, {there, pending.length});
      break;
    case 5:
      wr.opcode = kWrRead;
      pending.opcode = kWcRead;
      pending.uses_window = by_window;
      pending.offset = offset;
      pending.brings.assign(there, there + pending.length);
      wr.remote_address = peer.target.iova + offset;
      break;
    case 6:
    case 7: {  // of eight aligned bytes; before them, what stands there
      offset &= ~7U;
      const bool swaps = random_.chance(500'000);
      std::byte* const word = peer.model.data() + offset;
      std::uint64_t original = 0;
      std::memcpy(&original, word, 8);
      const std::uint64_t value = random_.next();
      wr.opcode = swaps ? kWrCompareSwap : kWrAtomicWrite;
      pending.opcode = swaps ? kWcCompareSwap : kWcAtomicWrite;
      pending.uses_window = by_window;
      pending.length = 8;
      if (conflicts(8)) wr.flags |= kFence;
      wr.remote_address = peer.target.iova + offset;
      wr.compare_add = swaps && random_.chance(600'000) ? original : random_.next();
      wr.swap = wr.atomic_write = value;
      if (!swaps || wr.compare_add == original) std::memcpy(word, &value, 8);
      if (swaps)
        pending.brings.assign(reinterpret_cast<std::byte*>(&original),
                              reinterpret_cast<std::byte*>(&original) + 8);
      break;
    }
    case 8:  // moves nothing
      wr.opcode = kWrFlush;
      pending.opcode = kWcFlush;
      wr.placement = 1;  // global visibility
      wr.selectivity = random_.chance(500'000) ? 1 : 0;
      wr.rkey = peer.target.rkey;
      wr.remote_address = peer.target.iova + offset;
      break;
    default:
      wr.opcode = kWrFetchAdd;
      pending.opcode = kWcFetchAdd;
      pending.length = 8;
      pending.adds = pending.is_signaled = true;
      wr.flags |= kSignaled;
      wr.compare_add = 1;
      wr.remote_address = peer.party->counter.iova;
      wr.rkey = peer.party->counter.rkey;
      break;
  }
  wr.immediate = message.immediate = static_cast<std::uint32_t>(random_.next());
  const bool sends = wr.opcode == kWrSend || wr.opcode == kWrSendImm || wr.opcode == kWrSendInvalidate ||
                     wr.opcode == kWrWrite || wr.opcode == kWrWriteImm;
  if (!sends) {
    pending.slot = take_slot(*end.party, pending.tag);
    wr.sges = {end.party->arena.sge(std::uint64_t{pending.slot} * kSlotBytes, pending.length)};
    if (wr.opcode == kWrAtomicWrite) wr.sges.clear();
  } else {
    send_from_slot(end, wr, pending);
    if (!message.is_write || message.has_immediate) peer.expected.push_back(message);
  }
  return true;
}

// Windows over the own target: bound, and taken back when the peer has nothing under way that uses them.
bool MixedProgram::make_local(End& end, SendWr& wr, Pending& pending) {
  if (end.window == Window::kNone || !random_.chance(end.window == Window::kFree ? 400'000 : 150'000))
    return false;
  const bool is_used = std::any_of(end.peer->pending.begin(), end.peer->pending.end(),
                                   [](const Pending& one) { return one.uses_window; });
  const bool may_change = end.window == Window::kBound && !is_used;
  if (end.window == Window::kFree || (may_change && end.mw_type == MwType::kType1)) {
    wr.opcode = kWrBindWindow;
    pending.opcode = kWcBindWindow;
    wr.binding = {end.mw.rkey,     end.mw.next_key(),
                  end.target.lkey, end.target.iova,
                  kTargetBytes,    kAccessRemoteWrite | kAccessRemoteRead | kAccessRemoteAtomic};
    end.mw.rkey = wr.binding.new_key;
    end.window = Window::kBinding;
  } else if (may_change) {
    wr.opcode = kWrLocalInvalidate;
    pending.opcode = kWcLocalInvalidate;
    wr.invalidate = end.mw.rkey;
    end.window = Window::kInvalidating;
  } else {
    return false;
  }
  wr.flags |= kSignaled;
  pending.is_local = pending.is_signaled = true;
  pending.length = 0;
  return true;
}

bool MixedProgram::make_unreliable(End& end, SendWr& wr, Pending& pending) {
  End& peer = *end.peer;
  Message message{pending.tag, pending.length};
  message.has_immediate = random_.chance(500'000);
  message.is_write = random_.chance(500'000) && peer.written + pending.length <= kTargetBytes;
  wr.opcode = message.is_write ? (message.has_immediate ? kWrWriteImm : kWrWrite)
                               : (message.has_immediate ? kWrSendImm : kWrSend);
  // The number tells which message it is, where the bytes do not.
  wr.immediate = message.immediate = static_cast<std::uint32_t>(peer.sent.size());
  if (message.is_write) {
    pending.opcode = kWcWrite;
    message.offset = peer.written;
    wr.remote_address = peer.target.iova + peer.written;
    wr.rkey = peer.target.rkey;
    peer.written += pending.length;
  }
  send_from_slot(end, wr, pending);
  numbers_[pending.tag] = peer.sent.size();
  peer.sent.push_back(message);
  return true;
}

bool MixedProgram::make_datagram(End& end, SendWr& wr, Pending& pending) {
  std::vector<End*> others;
  for (const std::unique_ptr<End>& one : ends_) {
    if (one->type == end.type && one->party->host != end.party->host) others.push_back(one.get());
  }
  const bool is_gsi = end.type == QpType::kGsi;
  if (is_gsi && others.empty()) {
    end.to_post = 0;  // nobody to talk to
    return false;
  }
  const bool to_group = others.empty() || (!is_gsi && random_.chance(300'000));
  Datagram datagram;
  datagram.source = &end;
  datagram.destination = to_group ? nullptr : others[random_.index(others.size())];
  datagram.ipv6 = !to_group && random_.chance(400'000);
  pending.length = std::min(pending.length, is_gsi ? kMadBytes : proto::bytes_of(mtu_));
  datagram.message = {pending.tag, pending.length};
  datagram.message.has_immediate = random_.chance(500'000);
  wr.opcode = datagram.message.has_immediate ? kWrSendImm : kWrSend;
  wr.immediate = datagram.message.immediate = static_cast<std::uint32_t>(random_.next());
  const Party* const there = to_group ? nullptr : datagram.destination->party;
  const proto::Gid gid = to_group ? group() : World::gid(there->host, there->nic, datagram.ipv6);
  const std::optional<AhHandle> ah = find_handle(*end.party, gid);
  if (!ah.has_value()) {
    wanted_handles_.push_back({end.party, gid, datagram.ipv6});
    return false;
  }
  wr.ah = *ah;
  pending.ah = ah;
  wr.remote_qpn = to_group ? proto::kQpnMulticast : datagram.destination->qp->qpn();
  // With its top bit set it asks for the QP's own.
  wr.remote_qkey = random_.chance(500'000)
                       ? qkey_of(end.type)
                       : proto::Qkey{kOwnQkeyBit | static_cast<std::uint32_t>(random_.next())};
  send_from_slot(end, wr, pending);
  datagrams_[pending.tag] = std::move(datagram);
  return true;
}

void MixedProgram::post_receive(Party& party, End* end) {
  if (party.free_slots.size() < 16) return;
  Receive receive{&party, end, 0, kMaxMessage + kGrhBytes, next_tag_++};
  RecvWr wr;
  wr.wr_id = next_id_++;
  receive.slot = take_slot(party, receive.tag);
  wr.sges = pieces(party, receive.slot, receive.capacity);
  const bool is_taken =
      end == nullptr ? party.srq->post_recv(wr) : !end->qp->recv_full() && end->qp->post_recv(wr);
  if (!is_taken) return party.free_slots.push_back(receive.slot);
  if (end != nullptr) end->posted.push_back(wr.wr_id);
  receives_.emplace(wr.wr_id, receive);
}

}  // namespace roci::sim::mixed
