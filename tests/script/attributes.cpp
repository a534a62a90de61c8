#include "tests/script/attributes.h"

#include <bit>

#include "tests/script/words.h"

namespace roci::scripts {

using namespace emulator;

namespace {

using Values = QpAttributes;

// A plain member; whoever gives a value that does not fit into it gets it cut, so the parser bounds it.
#define ROCI_PLAIN(name, bit, member)                                                                     \
  Attribute {                                                                                             \
    name, bit,                                                                                            \
        [](Values& a, std::uint64_t value) { a.member = static_cast<decltype(Values{}.member)>(value); }, \
        [](const Values& a) { return static_cast<std::uint64_t>(a.member); }                              \
  }
#define ROCI_TYPED(name, bit, member)                                                \
  Attribute {                                                                        \
    name, bit,                                                                       \
        [](Values& a, std::uint64_t value) {                                         \
          a.member = decltype(a.member){static_cast<std::uint32_t>(value)};          \
        },                                                                           \
        [](const Values& a) { return static_cast<std::uint64_t>(a.member.value()); } \
  }

const Attribute kAttributes[] = {
    ROCI_PLAIN("access", kQpAccessFlags, access),
    ROCI_PLAIN("pkey_index", kQpPkeyIndex, pkey_index),
    ROCI_PLAIN("port", kQpPort, port),
    ROCI_TYPED("qkey", kQpQkey, qkey),
    ROCI_PLAIN("timeout", kQpTimeout, timeout),
    ROCI_PLAIN("retry_cnt", kQpRetryCnt, retry_cnt),
    ROCI_PLAIN("rnr_retry", kQpRnrRetry, rnr_retry),
    ROCI_PLAIN("max_rd_atomic", kQpMaxQpRdAtomic, max_rd_atomic),
    ROCI_PLAIN("max_dest_rd_atomic", kQpMaxDestRdAtomic, max_dest_rd_atomic),
    ROCI_PLAIN("min_rnr_timer", kQpMinRnrTimer, min_rnr_timer),
    ROCI_PLAIN("en_sqd_async_notify", kQpEnSqdAsyncNotify, en_sqd_async_notify),
    ROCI_PLAIN("mtu_code", kQpPathMtu, path_mtu_code),
    ROCI_PLAIN("grh", kQpAv, av.is_global),
    ROCI_PLAIN("sgid_index", kQpAv, av.sgid_index),
    ROCI_PLAIN("sl", kQpAv, av.service_level),
    ROCI_PLAIN("tclass", kQpAv, av.traffic_class),
    ROCI_PLAIN("hop_limit", kQpAv, av.hop_limit),
    ROCI_PLAIN("flow_label", kQpAv, av.flow_label),
    ROCI_TYPED("rq_psn", kQpRqPsn, rq_psn),
    ROCI_TYPED("sq_psn", kQpSqPsn, sq_psn),
    ROCI_TYPED("dest_qpn", kQpDestQpn, dest_qpn),
    // Not to be set.
    ROCI_PLAIN("sq_draining", 0, sq_draining),
    ROCI_PLAIN("max_send_wr", 0, capabilities.max_send_wr),
    ROCI_PLAIN("max_recv_wr", 0, capabilities.max_recv_wr),
    ROCI_PLAIN("max_send_sge", 0, capabilities.max_send_sge),
    ROCI_PLAIN("max_recv_sge", 0, capabilities.max_recv_sge),
    ROCI_PLAIN("max_inline", 0, capabilities.max_inline_bytes),
    // 256 to 4096, as people say it.
    {"mtu", kQpPathMtu,
     [](Values& a, std::uint64_t value) {
       if (!std::has_single_bit(value) || value < 256 || value > 4096) complain("no path MTU is that large");
       a.path_mtu_code = static_cast<std::uint32_t>(std::countr_zero(value)) - 7;
     },
     [](const Values& a) { return std::uint64_t{128} << a.path_mtu_code; }},
};
#undef ROCI_PLAIN
#undef ROCI_TYPED

}  // namespace

const Attribute* find_attribute(std::string_view name) {
  for (const Attribute& one : kAttributes) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

std::uint32_t usual_mask(QpType type, QpState to) {
  const bool is_rc = type == QpType::kRc;
  const bool is_gsi = type == QpType::kGsi, is_datagram = is_gsi || type == QpType::kUd;
  if (to == QpState::kInit) {
    return kQpPkeyIndex | (is_gsi ? 0U : std::uint32_t{kQpPort}) |
           (is_datagram ? std::uint32_t{kQpQkey} : std::uint32_t{kQpAccessFlags});
  }
  if (to == QpState::kRtr) {
    if (is_datagram) return 0;
    return kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | (is_rc ? kQpMaxDestRdAtomic | kQpMinRnrTimer : 0U);
  }
  if (to == QpState::kRts)
    return kQpSqPsn | (is_rc ? kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxQpRdAtomic : 0U);
  return 0;
}

}  // namespace roci::scripts
