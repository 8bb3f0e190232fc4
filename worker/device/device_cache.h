// A rank's paged KV cache on its device: for every cache layer the same number of blocks, laid out
// as kernels/tensor/kv_layout.h says. Zeroed when it is made; one epoch's.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/tensor/device.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {

class DeviceCache {
 public:
  DeviceCache() = default;  // no layers

  // A layer without heads takes no memory. RESOURCE_EXHAUSTED when the device has too little.
  // Usable on `stream`.
  static absl::StatusOr<DeviceCache> Create(Device& device, const std::vector<KvLayout>& layers,
                                            uint32_t blocks, DeviceStream& stream);

  uint8_t* const* layers() const { return layers_.data(); }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  DeviceBuffer memory_;
  std::vector<uint8_t*> layers_;
};

}  // namespace bitshard
