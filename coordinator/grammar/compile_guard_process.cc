// The other side of compile_guard.h: reads limits and vocabulary, then compiles what comes and says
// what is wrong with it, until the socket ends.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <malloc.h>
#include <optional>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "coordinator/grammar/compile_guard.h"
#include "coordinator/grammar/constraint_compiler.h"
#include "coordinator/grammar/framed_pipe.h"

namespace bitshard {
namespace {

constexpr int kSocket = STDIN_FILENO;
// Half of what the compiling thread of the service has (coordinator/stack_thread.h).
constexpr rlim_t kStackBytes = 4 << 20;

void Limit(decltype(RLIMIT_CPU) what, rlim_t value) {
  rlimit limit = {};
  getrlimit(what, &limit);
  limit.rlim_cur = std::min(value, limit.rlim_max);
  setrlimit(what, &limit);
}

// Addresses in use now, in bytes.
[[maybe_unused]] rlim_t AddressSpace() {
  long pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &pages) != 1) pages = 0;
  if (file != nullptr) std::fclose(file);
  return static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

rlim_t CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<rlim_t>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec);
}

std::optional<Constraint> ParseConstraint(absl::string_view message) {
  if (message.empty()) return std::nullopt;
  Constraint constraint;
  constraint.kind = static_cast<Constraint::Kind>(message[0]);
  message.remove_prefix(1);
  bool first = true;
  while (!message.empty()) {
    uint32_t size = 0;
    if (message.size() < sizeof(size)) return std::nullopt;
    std::memcpy(&size, message.data(), sizeof(size));
    message.remove_prefix(sizeof(size));
    if (size > message.size()) return std::nullopt;
    if (first) {
      constraint.text = std::string(message.substr(0, size));
    } else {
      constraint.options.emplace_back(message.substr(0, size));
    }
    first = false;
    message.remove_prefix(size);
  }
  return constraint;
}

}  // namespace

int RunCompileGuard() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "bitshard-guard");
  close_range(STDERR_FILENO + 1, ~0u, 0);
  rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);

  const absl::StatusOr<std::string> limits = ReadFrame(kSocket, absl::InfiniteDuration());
  const absl::StatusOr<std::string> bytes = ReadFrame(kSocket, absl::InfiniteDuration());
  if (!limits.ok() || !bytes.ok()) return 1;
  const std::vector<std::string> numbers = absl::StrSplit(*limits, ' ');
  uint64_t cpu_seconds = 0, memory_bytes = 0;
  if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &cpu_seconds) ||
      !absl::SimpleAtoi(numbers[1], &memory_bytes)) {
    return 1;
  }
  const absl::StatusOr<VocabularyBytes> vocabulary = VocabularyBytes::Parse(*bytes);
  if (!vocabulary.ok()) return 1;
  const ConstraintCompiler compiler(*vocabulary);
  Limit(RLIMIT_STACK, kStackBytes);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  Limit(RLIMIT_AS, AddressSpace() + memory_bytes);  // sanitizers reserve terabytes
#endif
  if (!WriteFrame(kSocket, "", absl::InfiniteDuration()).ok()) return 1;

  while (true) {
    const absl::StatusOr<std::string> message = ReadFrame(kSocket, absl::InfiniteDuration());
    if (!message.ok()) return 0;
    const std::optional<Constraint> constraint = ParseConstraint(*message);
    if (!constraint.has_value()) return 1;
    Limit(RLIMIT_CPU, CpuSeconds() + 1 + cpu_seconds);
    const absl::Status status = compiler.Compile(*constraint).status();
    Limit(RLIMIT_CPU, RLIM_INFINITY);
    malloc_trim(0);  // the next one has all of the memory again
    absl::string_view error = status.message();
    // The other side puts the field before it again.
    if (absl::ConsumePrefix(&error, constraint->Field())) absl::ConsumePrefix(&error, ": ");
    if (!WriteFrame(kSocket, error, absl::InfiniteDuration()).ok()) return 0;
  }
}

}  // namespace bitshard
