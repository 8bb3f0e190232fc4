#include "worker/load/source_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"

namespace bitshard {

absl::StatusOr<SourceFile> SourceFile::Open(const std::string& path, uint64_t expected_bytes) {
  // O_NONBLOCK: a FIFO of this name must not hang the open; it means nothing for regular files.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const std::string message =
        absl::StrCat("weights ", path, ": ", std::strerror(error),
                     "; every worker must see the model under the same path as the coordinator");
    if (error == EACCES) return absl::PermissionDeniedError(message);
    if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
    return absl::UnavailableError(message);
  }
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat("weights ", path, ": not a regular file"));
  }
  const uint64_t size_bytes = static_cast<uint64_t>(info.st_size);
  if (size_bytes != expected_bytes) {
    close(fd);
    return absl::DataLossError(
        absl::StrCat("weights ", path, ": the file has ", size_bytes,
                     " bytes here, but the coordinator planned with ", expected_bytes,
                     "; is a download still running, or is this another version of the model?"));
  }
  return SourceFile(path, fd, size_bytes);
}

SourceFile::~SourceFile() {
  if (fd_ >= 0) close(fd_);
}

SourceFile::SourceFile(SourceFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_bytes_(other.size_bytes_) {}

absl::Status SourceFile::ReadAt(uint64_t offset, absl::Span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return absl::DataLossError(absl::StrCat("weights ", path_, ": reading ", out.size(),
                                              " bytes at ", offset, ": ", std::strerror(errno)));
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat("weights ", path_, ": the file ended at byte ",
                                              offset + done,
                                              " while it was read; has it been replaced?"));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<RangeReader> RangeReader::Create(
    const SourceFile* file, const google::protobuf::RepeatedPtrField<internal::ByteRange>& ranges) {
  RangeReader reader;
  reader.file_ = file;
  reader.starts_.push_back(0);
  for (const internal::ByteRange& range : ranges) {
    if (range.length() == 0 || range.count() == 0) continue;
    const std::optional<uint64_t> last =
        range.count() == 1 ? 0 : CheckedMul(range.stride(), range.count() - 1);
    const std::optional<uint64_t> end_of_first = CheckedAdd(range.offset(), range.length());
    const std::optional<uint64_t> end = last.has_value() && end_of_first.has_value()
                                            ? CheckedAdd(*end_of_first, *last)
                                            : std::nullopt;
    if (!end.has_value() || *end > file->size_bytes() ||
        (range.count() > 1 && range.stride() < range.length())) {
      return absl::InvalidArgumentError(
          absl::StrCat("byte range of ", range.count(), " x ", range.length(), " at ",
                       range.offset(), ", stride ", range.stride(), ", does not lie inside of ",
                       file->path(), " (", file->size_bytes(), " bytes)"));
    }
    // No overflow: the pieces are disjoint parts of a file. Ranges together may still claim too
    // much.
    const std::optional<uint64_t> next =
        CheckedAdd(reader.starts_.back(), range.length() * range.count());
    if (!next.has_value()) return absl::InvalidArgumentError("byte ranges overflow");
    reader.ranges_.push_back(range);
    reader.starts_.push_back(*next);
  }
  return reader;
}

absl::Status RangeReader::Read(uint64_t position, absl::Span<uint8_t> out) const {
  CHECK(position <= size_bytes() && out.size() <= size_bytes() - position);
  size_t i = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), position) -
                                 starts_.begin() - 1);
  while (!out.empty()) {
    const internal::ByteRange& range = ranges_[i];
    const uint64_t in_range = position - starts_[i];
    const uint64_t piece = in_range / range.length(), in_piece = in_range % range.length();
    const size_t bytes =
        static_cast<size_t>(std::min<uint64_t>(out.size(), range.length() - in_piece));
    const uint64_t offset = range.offset() + piece * range.stride() + in_piece;
    const absl::Status status = file_->ReadAt(offset, out.first(bytes));
    if (!status.ok()) return status;
    out.remove_prefix(bytes);
    position += bytes;
    if (position == starts_[i + 1]) ++i;
  }
  return absl::OkStatus();
}

}  // namespace bitshard
