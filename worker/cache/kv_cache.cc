#include "worker/cache/kv_cache.h"

#include <algorithm>
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
// Of one layer, at a time.
constexpr uint32_t kTouchedBlocks = 32;

}  // namespace

KvCache::~KvCache() { UnmapMemory(memory_); }

KvCache::KvCache(KvCache&& other) noexcept { *this = std::move(other); }

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(blocks_, other.blocks_);
  std::swap(offsets_, other.offsets_);
  std::swap(block_bytes_, other.block_bytes_);
  std::swap(touched_, other.touched_);
  std::swap(piece_, other.piece_);
  std::swap(next_layer_, other.next_layer_);
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
    cache.block_bytes_.push_back(static_cast<uint64_t>(layout.block_bytes()));
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

bool KvCache::Touch(uint32_t begin, uint32_t end) {
  end = std::min(end, blocks_);
  if (bytes_ == 0 || std::max(begin, touched_) >= end) return false;
  if (next_layer_ == 0) {
    touched_ = std::max(begin, touched_);
    piece_ = std::min(kTouchedBlocks, end - touched_);
  }
  const uint64_t block_bytes = block_bytes_[next_layer_];
  TouchPages(layer(next_layer_) + touched_ * block_bytes, piece_ * block_bytes);
  if (++next_layer_ == block_bytes_.size()) {
    next_layer_ = 0;
    touched_ += piece_;
  }
  return touched_ < end;
}

}  // namespace bitshard
