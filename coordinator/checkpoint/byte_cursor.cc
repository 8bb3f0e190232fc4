#include "coordinator/checkpoint/byte_cursor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace bitshard {
namespace {

constexpr uint64_t kBufferBytes = 1 << 20;

}  // namespace

absl::Status ByteCursor::CheckRemaining(uint64_t count, const std::string& what) const {
  if (count <= remaining()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(where_, ": ", what, " needs ", count, " bytes at offset ",
                                          position_, " but the file ends after ", remaining(),
                                          "; is the download complete?"));
}

absl::Status ByteCursor::ReadBytes(uint64_t count, char* out, const std::string& what) {
  RETURN_IF_ERROR(CheckRemaining(count, what));
  while (count > 0) {
    if (position_ < buffer_begin_ || position_ >= buffer_begin_ + buffer_.size()) {
      const uint64_t fill = std::min(kBufferBytes, remaining());
      buffer_.resize(fill);
      buffer_begin_ = position_;
      const absl::Status status = read_(position_, fill, buffer_.data());
      if (!status.ok()) {
        buffer_.clear();
        return status;
      }
    }
    const uint64_t at = position_ - buffer_begin_;
    const uint64_t part = std::min(count, buffer_.size() - at);
    std::memcpy(out, buffer_.data() + at, part);
    out += part;
    position_ += part;
    count -= part;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ByteCursor::ReadBytes(uint64_t count, const std::string& what) {
  RETURN_IF_ERROR(CheckRemaining(count, what));
  std::string bytes(count, '\0');
  RETURN_IF_ERROR(ReadBytes(count, bytes.data(), what));
  return bytes;
}

}  // namespace bitshard
