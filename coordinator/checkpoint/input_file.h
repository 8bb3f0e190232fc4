// A file of a checkpoint, read by position. What cannot be a weight file or a side file is refused
// with the reason when it is opened: missing, a folder, a device, empty, a Git-LFS pointer instead
// of the data.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bitshard {

class InputFile {
 public:
  static absl::StatusOr<InputFile> Open(const std::string& path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

  // All or nothing: DATA_LOSS when the file ends before offset + count.
  absl::Status ReadAt(uint64_t offset, uint64_t count, char* out) const;
  absl::StatusOr<std::string> ReadAt(uint64_t offset, uint64_t count) const;

 private:
  InputFile(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  absl::Status CheckRange(uint64_t offset, uint64_t count) const;

  std::string path_;
  int fd_;
  uint64_t size_;
};

// A whole text file of at most `limit_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t limit_bytes);

// Whether something of this name exists, a dangling link included.
bool PathExists(const std::string& path);

}  // namespace bitshard
