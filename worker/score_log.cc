#include "worker/score_log.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/log.h"

namespace bitshard {
namespace {

bool WriteAll(int file, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = write(file, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScoreLog>> ScoreLog::Open(const std::string& folder) {
  std::string path = absl::StrCat(folder, "/", getpid(), ".logits");
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--score-log=", folder, ": cannot write ", path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<ScoreLog>(new ScoreLog(std::move(path), file));
}

ScoreLog::~ScoreLog() { close(file_); }

void ScoreLog::Write(uint32_t position, uint32_t vocab_begin, absl::Span<const float> logits) {
  if (broken_) return;
  const uint32_t header[4] = {position, vocab_begin, static_cast<uint32_t>(logits.size()), 0};
  if (WriteAll(file_, header, sizeof header) &&
      WriteAll(file_, logits.data(), logits.size() * sizeof(float))) {
    return;
  }
  broken_ = true;
  LogError("worker: score log {} ends at position {}: {}", path_, position, std::strerror(errno));
}

}  // namespace bitshard
