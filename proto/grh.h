// Global Route Header of RoCE v1 and native InfiniBand: the layout of an IPv6 header, with next header 0x1B
// [IBTA C8-7].
//
// Not on RoCE v2, where an IP header stands in its place. Plain value, no thread rule.
#pragma once

#include "proto/ipv6.h"

namespace roci::proto {

using Grh = Ipv6Header;

}  // namespace roci::proto
