// Reads a file front to back, little-endian, without trusting any count in it: nothing is allocated
// before it is known that the file still has that many bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/base/status_macros.h"

namespace bitshard {

class ByteCursor {
 public:
  // Fills out[count] from `offset`; asked only for ranges inside the file.
  using ReadFn = std::function<absl::Status(uint64_t offset, uint64_t count, char* out)>;

  // `where` names the file in messages.
  ByteCursor(ReadFn read, uint64_t size, std::string where)
      : read_(std::move(read)), size_(size), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return size_ - position_; }

  // `what` is what the bytes are, for the message when the file ends first.
  absl::Status ReadBytes(uint64_t count, char* out, const std::string& what);
  absl::StatusOr<std::string> ReadBytes(uint64_t count, const std::string& what);

  template <typename T>
  absl::StatusOr<T> Read(const std::string& what) {
    static_assert(std::is_arithmetic_v<T>);
    char bytes[sizeof(T)];
    RETURN_IF_ERROR(ReadBytes(sizeof(T), bytes, what));
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }

 private:
  absl::Status CheckRemaining(uint64_t count, const std::string& what) const;

  const ReadFn read_;
  const uint64_t size_;
  const std::string where_;
  uint64_t position_ = 0;
  std::string buffer_;  // the file's bytes from buffer_begin_
  uint64_t buffer_begin_ = 0;
};

}  // namespace bitshard
