// Memory of the paged KV cache of one rank: for every cache layer the same number of blocks of 16
// positions, laid out as kernels/tensor/kv_layout.h says. Which block belongs to whom is the
// coordinator's affair.
//
// Allocated when an epoch starts, dropped when it ends: a new epoch always finds zeroed memory.
// Pages are mapped when they are first touched, so blocks that are never used cost nothing. In
// large pages a block's first touch zeroes 2 MiB a layer, which a step would feel: Touch does it
// before.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/tensor/kv_layout.h"

namespace bitshard {

class KvCache {
 public:
  KvCache() = default;  // no layers, no blocks
  ~KvCache();
  KvCache(KvCache&& other) noexcept;
  KvCache& operator=(KvCache&& other) noexcept;

  // `layers[i]` is the layout of cache layer i; a layer without heads takes no memory.
  // RESOURCE_EXHAUSTED when the system refuses.
  static absl::StatusOr<KvCache> Create(const std::vector<KvLayout>& layers, uint32_t blocks);

  // Bytes that one block takes over all layers.
  static uint64_t BytesPerBlock(const std::vector<KvLayout>& layers);

  // Takes the host's memory for a piece of the blocks from `begin` to `end`, in the order of their
  // ids; what they hold stays. False when none of them is left. `begin` never falls: the blocks
  // below it have been used. Not while a step runs.
  bool Touch(uint32_t begin, uint32_t end);

  // Block b of the layer is at layer(i) + b * layout.block_bytes().
  uint8_t* layer(size_t i) { return memory_ + offsets_[i]; }
  uint32_t blocks() const { return blocks_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint8_t* memory_ = nullptr;  // null when bytes_ == 0
  uint64_t bytes_ = 0;
  uint32_t blocks_ = 0;
  std::vector<uint64_t> offsets_;
  // Touched: blocks below touched_; of the piece_ after them those of the layers before
  // next_layer_.
  std::vector<uint64_t> block_bytes_;  // by layer
  uint32_t touched_ = 0, piece_ = 0;
  size_t next_layer_ = 0;
};

}  // namespace bitshard
