#include "kernels/tensor/buffer.h"

#include <cstring>

#include "kernels/base/check.h"

namespace bitshard {

Buffer::Buffer(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const size_t padded = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  CHECK_GE(padded, bytes);
  data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, padded)));
  CHECK(data_ != nullptr) << "no memory left for " << bytes << " bytes";
  std::memset(data_.get(), 0, padded);
}

Buffer::Buffer(size_t bytes, MemoryPart part)
    : data_(MapMemory(part, bytes), Free(Free::Kind::kMapping)), bytes_(bytes) {
  if (bytes == 0) return;
  CHECK(data_ != nullptr) << "no memory left for " << bytes << " bytes";
  std::memset(data_.get(), 0, bytes);
}

Buffer::Buffer(size_t bytes, MemoryArena* arena) : bytes_(bytes) {
  if (arena == nullptr) {
    *this = Buffer(bytes);
    return;
  }
  if (bytes == 0) return;
  data_ = std::unique_ptr<uint8_t[], Free>(arena->Allocate(bytes), Free(Free::Kind::kArena));
}

}  // namespace bitshard
