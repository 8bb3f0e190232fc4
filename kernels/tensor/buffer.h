// Owned memory for weights, caches and scratch: 64-byte aligned, zeroed, sized once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "kernels/tensor/mapped_memory.h"

namespace bitshard {

inline constexpr size_t kBufferAlignment = 64;

class Buffer {
 public:
  Buffer() = default;
  // On the heap. Dies when the machine has no memory left: sizes from outside are checked against a
  // budget before.
  explicit Buffer(size_t bytes);
  // The same in a mapping of its own, every page touched.
  Buffer(size_t bytes, MemoryPart part);
  // A piece of an arena, which outlives it; on the heap when it is null. Its pages are touched when
  // they are written.
  Buffer(size_t bytes, MemoryArena* arena);

  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  size_t bytes() const { return bytes_; }
  uint8_t* data() { return data_.get(); }
  const uint8_t* data() const { return data_.get(); }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Free {
    enum class Kind { kHeap, kMapping, kArena };
    Free() : kind(Kind::kHeap) {}
    explicit Free(Kind k) : kind(k) {}
    Kind kind;
    void operator()(uint8_t* p) const {
      if (kind == Kind::kHeap) std::free(p);
      if (kind == Kind::kMapping) UnmapMemory(p);
    }
  };
  std::unique_ptr<uint8_t[], Free> data_;
  size_t bytes_ = 0;
};

}  // namespace bitshard
