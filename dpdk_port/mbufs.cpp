#include "dpdk_port/mbufs.h"

#include <rte_mempool.h>

namespace roci::dpdk_port {

rte_mempool* make_pool(const std::string& name, std::uint32_t mbufs, std::uint32_t data_bytes) {
  return rte_pktmbuf_pool_create_by_ops(name.c_str(), mbufs, kPoolCacheMbufs, 0,
                                        static_cast<std::uint16_t>(data_bytes + RTE_PKTMBUF_HEADROOM),
                                        SOCKET_ID_ANY, "ring_mt_rts");
}

std::size_t pool_bytes(std::uint32_t mbufs, std::uint32_t data_bytes) {
  // An object: its header, the mbuf, the data, and padding to spread objects over memory channels and pages.
  const std::size_t object = sizeof(rte_mempool_objhdr) + sizeof(rte_mbuf) + RTE_PKTMBUF_HEADROOM +
                             data_bytes + std::size_t{4} * RTE_CACHE_LINE_SIZE;
  const std::size_t ring = 16 * sizeof(void*);  // a pointer, rounded up to a power of two, with room to spare
  const std::size_t caches = RTE_MAX_LCORE * sizeof(rte_mempool_cache);
  return mbufs * (object + object / 8 + ring) + caches;
}

}  // namespace roci::dpdk_port
