// Owned memory for weights, caches and scratch: 64-byte aligned, zeroed, sized once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

namespace bitshard {

inline constexpr size_t kBufferAlignment = 64;

class Buffer {
 public:
  Buffer() = default;
  // Dies when the machine has no memory left: sizes from outside are checked against a budget
  // before.
  explicit Buffer(size_t bytes);

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
    void operator()(uint8_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t[], Free> data_;
  size_t bytes_ = 0;
};

}  // namespace bitshard
