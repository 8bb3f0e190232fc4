#include "worker/device/device_cache.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr uint64_t kLayerAlignment = 256;

}  // namespace

absl::StatusOr<DeviceCache> DeviceCache::Create(Device& device, const std::vector<KvLayout>& layers,
                                                uint32_t blocks, DeviceStream& stream) {
  std::vector<uint64_t> offsets;
  std::optional<uint64_t> bytes = 0;
  for (const KvLayout& layout : layers) {
    offsets.push_back(*bytes);
    const auto layer = CheckedMul(static_cast<uint64_t>(layout.block_bytes()), blocks);
    if (layer.has_value()) bytes = CheckedAdd(*bytes, *layer);
    if (!layer.has_value() || !bytes.has_value() || *bytes > UINT64_MAX / 2)
      return absl::ResourceExhaustedError(absl::StrCat("a cache of ", blocks, " blocks"));
    bytes = RoundUp(*bytes, kLayerAlignment);
  }
  DeviceCache cache;
  cache.layers_.assign(layers.size(), nullptr);
  if (*bytes == 0) return cache;  // no heads here
  absl::StatusOr<DeviceBuffer> memory = device.Alloc(*bytes);
  if (!memory.ok()) {
    return WithContext(
        memory.status(),
        absl::StrCat("KV cache of ", blocks, " blocks, ", *bytes,
                     " bytes (where there is no memory for it, something else has taken the "
                     "device's: lower --memory): "));
  }
  cache.memory_ = *std::move(memory);
  for (size_t i = 0; i < layers.size(); ++i) cache.layers_[i] = cache.memory_.data() + offsets[i];
  RETURN_IF_ERROR(device.Fill(cache.memory_.data(), 0, *bytes, stream));
  return cache;
}

}  // namespace bitshard
