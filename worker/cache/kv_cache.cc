#include "worker/cache/kv_cache.h"

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/tensor/mapped_memory.h"

namespace bitshard {
namespace {

// Layers begin on pages of their own.
constexpr uint64_t kLayerAlignment = 4096;

}  // namespace

KvCache::~KvCache() { UnmapMemory(memory_); }

KvCache::KvCache(KvCache&& other) noexcept { *this = std::move(other); }

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(blocks_, other.blocks_);
  std::swap(offsets_, other.offsets_);
  return *this;
}

uint64_t KvCache::BytesPerBlock(const std::vector<KvLayout>& layers) {
  uint64_t bytes = 0;
  for (const KvLayout& layout : layers) bytes += static_cast<uint64_t>(layout.block_bytes());
  return bytes;
}

absl::StatusOr<KvCache> KvCache::Create(const std::vector<KvLayout>& layers, uint32_t blocks) {
  KvCache cache;
  cache.blocks_ = blocks;
  uint64_t total = 0;
  for (const KvLayout& layout : layers) {
    cache.offsets_.push_back(total);
    const std::optional<uint64_t> bytes =
        CheckedMul(static_cast<uint64_t>(layout.block_bytes()), blocks);
    const std::optional<uint64_t> sum =
        bytes.has_value() ? CheckedAdd(total, *bytes) : std::nullopt;
    if (!sum.has_value() || *sum > uint64_t{1} << 60) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a KV cache of ", blocks, " blocks has more bytes than can be counted"));
    }
    total = RoundUp(*sum, kLayerAlignment);
  }
  if (total == 0) return cache;
  cache.memory_ = MapMemory(MemoryPart::kKvCache, total);
  if (cache.memory_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV cache of ", blocks, " blocks, ", total, " bytes: ", std::strerror(errno),
                     "; use fewer blocks, a smaller --memory or a narrower --kv-cache-dtype"));
  }
  cache.bytes_ = total;
  return cache;
}

}  // namespace bitshard
