// One checkpoint file, open for reading, and the pieces of it that make up a tensor's slice.
//
// Thread-safe: reads are positional.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/graph.pb.h"

namespace bitshard {

class SourceFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED or DATA_LOSS (its size is not `expected_bytes`), with the path.
  static absl::StatusOr<SourceFile> Open(const std::string& path, uint64_t expected_bytes);
  ~SourceFile();
  SourceFile(SourceFile&& other) noexcept;
  SourceFile& operator=(SourceFile&&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }

  // All of `out` or an error.
  absl::Status ReadAt(uint64_t offset, absl::Span<uint8_t> out) const;

 private:
  SourceFile(std::string path, int fd, uint64_t size_bytes)
      : path_(std::move(path)), fd_(fd), size_bytes_(size_bytes) {}

  std::string path_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0;
};

// The bytes of several ranges as one run. Keeps a pointer to the file, which must outlive it.
class RangeReader {
 public:
  // INVALID_ARGUMENT when a range leaves the file or overlaps itself.
  static absl::StatusOr<RangeReader> Create(
      const SourceFile* file,
      const google::protobuf::RepeatedPtrField<internal::ByteRange>& ranges);

  uint64_t size_bytes() const { return starts_.empty() ? 0 : starts_.back(); }

  // REQUIRES: position + out.size() <= size_bytes().
  absl::Status Read(uint64_t position, absl::Span<uint8_t> out) const;

 private:
  const SourceFile* file_ = nullptr;
  std::vector<internal::ByteRange> ranges_;  // without empty ones
  std::vector<uint64_t> starts_;             // ranges_.size() + 1: where each begins in the run
};

}  // namespace bitshard
