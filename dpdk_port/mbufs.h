// Buffer pools of the shards.
//
// Each shard takes buffers from its own pool only. Anybody may give one back, as frames are handed from shard
// to shard and to drivers without copying: the pool takes them from several threads (DPDK's "ring_mt_rts", in
// which a thread that loses its core in the middle delays no other). With each thread's own cache in front,
// what a shard frees is what it takes next, while still in the processor's cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <rte_mbuf.h>

namespace roci::dpdk_port {

inline constexpr std::uint32_t kPoolCacheMbufs = 128;

// Null: no memory. Lives until EAL is cleaned up.
[[nodiscard]] rte_mempool* make_pool(const std::string& name, std::uint32_t mbufs, std::uint32_t data_bytes);
// An upper bound of the memory such a pool takes of EAL's heap.
[[nodiscard]] std::size_t pool_bytes(std::uint32_t mbufs, std::uint32_t data_bytes);

[[nodiscard]] inline std::span<const std::byte> bytes_of(const rte_mbuf* mbuf) {
  return {rte_pktmbuf_mtod(mbuf, const std::byte*), mbuf->data_len};
}

}  // namespace roci::dpdk_port
