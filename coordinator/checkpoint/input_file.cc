#include "coordinator/checkpoint/input_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr std::string_view kLfsPointer = "version https://git-lfs";

absl::Status ErrnoStatus(const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  // O_NONBLOCK: a FIFO of this name must not hang the open; it means nothing for regular files.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(path, errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return ErrnoStatus(path, error);
  }
  InputFile file(path, fd, static_cast<uint64_t>(std::max<off_t>(info.st_size, 0)));
  if (S_ISDIR(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is a folder, not a file"));
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  if (file.size() == 0) {
    return absl::DataLossError(absl::StrCat(path, " is empty; is the download complete?"));
  }
  if (file.size() >= kLfsPointer.size()) {
    ASSIGN_OR_RETURN(const std::string head, file.ReadAt(0, kLfsPointer.size()));
    if (head == kLfsPointer) {
      return absl::DataLossError(
          absl::StrCat(path,
                       " is a Git-LFS pointer, not the data itself; run `git lfs pull` in its "
                       "repository or download the file"));
    }
  }
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status InputFile::CheckRange(uint64_t offset, uint64_t count) const {
  if (offset <= size_ && count <= size_ - offset) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": needs ", count, " bytes at offset ", offset,
                                          " but the file has ", size_,
                                          "; is the download complete?"));
}

absl::Status InputFile::ReadAt(uint64_t offset, uint64_t count, char* out) const {
  RETURN_IF_ERROR(CheckRange(offset, count));
  while (count > 0) {
    const ssize_t got =
        ::pread(fd_, out, std::min<uint64_t>(count, 1 << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(path_, errno);
    if (got == 0)
      return absl::DataLossError(
          absl::StrCat(path_, ": the file became shorter while it was read"));
    out += got;
    offset += static_cast<uint64_t>(got);
    count -= static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> InputFile::ReadAt(uint64_t offset, uint64_t count) const {
  RETURN_IF_ERROR(CheckRange(offset, count));  // before the allocation: the count comes from a file
  std::string bytes(count, '\0');
  RETURN_IF_ERROR(ReadAt(offset, count, bytes.data()));
  return bytes;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t limit_bytes) {
  ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size() > limit_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", file.size(),
                                                   " bytes, more than the ", limit_bytes,
                                                   " allowed for such a file"));
  }
  return file.ReadAt(0, file.size());
}

bool PathExists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

}  // namespace bitshard
