// One side of one cell of RC, UC or UD.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/interop/agreement.h"

namespace roci::interop {

constexpr std::size_t kSlotBytes = 32768;  // of one message, a GRH in front
constexpr std::size_t kSlots = 16;
constexpr std::size_t kRegionBytes = 2 * kSlots * kSlotBytes;
constexpr unsigned kAllRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

// An open device, with what every cell uses. Throws std::runtime_error where there is none.
struct Device {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(kRegionBytes);

  explicit Device(const std::string& name) {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i) {
      if (name == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
    }
    ibv_free_device_list(list);
    if (context == nullptr) throw std::runtime_error("no device " + name);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 256, nullptr, nullptr, 0);
    if (pd == nullptr || cq == nullptr) throw std::runtime_error("cannot make a PD and a CQ");
    mr = ibv_reg_mr(pd, bytes.data(), bytes.size(), static_cast<int>(kAllRights));
    if (mr == nullptr) throw std::runtime_error("cannot register memory");
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    ibv_dereg_mr(mr);
    ibv_destroy_cq(cq);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
  }
  [[nodiscard]] std::uint64_t address(std::size_t offset) const {
    return reinterpret_cast<std::uint64_t>(bytes.data() + offset);
  }
};

// Nothing, or what was found to be wrong on this side. Throws when the two no longer understand each other.
std::string run_verbs_cell(Device& device, Line& line, const Cell& cell, bool is_requester);

}  // namespace roci::interop
