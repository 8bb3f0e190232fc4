#include "coordinator/grammar/framed_pipe.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/time/clock.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr uint64_t kMaxFrameBytes = uint64_t{1} << 30;

absl::Status Gone() { return absl::UnavailableError("the other process has gone"); }

// Until `fd` is ready for `event`, or gone.
absl::Status Await(int fd, short event, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer in time");
    pollfd ready = {fd, event, 0};
    // Finite steps: an infinite duration does not fit.
    const int ms = static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Seconds(60))));
    if (poll(&ready, 1, std::max(ms, 1)) > 0) return absl::OkStatus();
  }
}

absl::Status WriteAll(int fd, const char* bytes, size_t size, absl::Time deadline) {
  while (size > 0) {
    RETURN_IF_ERROR(Await(fd, POLLOUT, deadline));
    const ssize_t written = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written <= 0) return Gone();
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, char* bytes, size_t size, absl::Time deadline) {
  while (size > 0) {
    RETURN_IF_ERROR(Await(fd, POLLIN, deadline));
    const ssize_t taken = recv(fd, bytes, size, MSG_DONTWAIT);
    if (taken < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (taken <= 0) return Gone();
    bytes += taken;
    size -= static_cast<size_t>(taken);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFrame(int fd, absl::string_view bytes, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const uint64_t size = bytes.size();
  RETURN_IF_ERROR(WriteAll(fd, reinterpret_cast<const char*>(&size), sizeof(size), deadline));
  return WriteAll(fd, bytes.data(), bytes.size(), deadline);
}

absl::StatusOr<std::string> ReadFrame(int fd, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  uint64_t size = 0;
  RETURN_IF_ERROR(ReadAll(fd, reinterpret_cast<char*>(&size), sizeof(size), deadline));
  if (size > kMaxFrameBytes) return Gone();
  std::string bytes(size, '\0');
  RETURN_IF_ERROR(ReadAll(fd, bytes.data(), size, deadline));
  return bytes;
}

}  // namespace bitshard
