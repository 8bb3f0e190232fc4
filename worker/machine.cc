#include "worker/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace bitshard {
namespace {

std::string ReadSmallFile(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream out;
  if (in) out << in.rdbuf();
  return out.str();
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadSmallFile(path)), &value)) {
    return std::nullopt;  // not there, or "max"
  }
  return value;
}

std::optional<uint64_t> MemAvailable() {
  const std::string text = ReadSmallFile("/proc/meminfo");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "MemAvailable:")) continue;
    uint64_t kib = 0;
    line = absl::StripAsciiWhitespace(line);
    absl::ConsumeSuffix(&line, " kB");
    if (absl::SimpleAtoi(line, &kib)) return kib * 1024;
  }
  return std::nullopt;
}

// What limit - usage leaves in this group and all above it.
std::optional<uint64_t> CgroupMemoryLeft() {
  std::optional<uint64_t> least;
  const std::string groups = ReadSmallFile("/proc/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool v2 = parts[0] == "0" && parts[1].empty();
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (!v2 && std::count(controllers.begin(), controllers.end(), "memory") == 0) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::string group = parts[2];
    while (true) {
      const std::string folder = group == "/" ? root : root + group;
      const auto limit = ReadNumber(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      const auto used = ReadNumber(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
      if (limit.has_value() && used.has_value()) {
        const uint64_t left = *limit > *used ? *limit - *used : 0;
        least = std::min(least.value_or(left), left);
      }
      const size_t slash = group.rfind('/');
      if (group == "/" || slash == std::string::npos) break;
      group = slash == 0 ? "/" : group.substr(0, slash);
    }
  }
  return least;
}

}  // namespace

uint64_t AvailableMemoryBytes() {
  const std::optional<uint64_t> host = MemAvailable();
  const std::optional<uint64_t> group = CgroupMemoryLeft();
  if (host.has_value() && group.has_value()) return std::min(*host, *group);
  if (host.has_value()) return *host;
  return group.value_or(uint64_t{1} << 30);
}

uint64_t MeasureReadBandwidth() {
  using Clock = std::chrono::steady_clock;
  // Beyond the caches of most machines, and quick to fill; what a large last-level cache adds is
  // there for weights too.
  constexpr size_t kWords = (size_t{64} << 20) / sizeof(uint64_t);
  std::vector<uint64_t> words;
  try {
    words.assign(kWords, 1);
  } catch (const std::bad_alloc&) {
    return 0;
  }
  uint64_t sums[8] = {};
  uint64_t bytes = 0;
  double best = 0;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(40);
  do {
    const Clock::time_point begin = Clock::now();
    for (size_t i = 0; i < kWords; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
    }
    const std::chrono::duration<double> took = Clock::now() - begin;
    bytes = kWords * sizeof(uint64_t);
    if (took.count() > 0) best = std::max(best, static_cast<double>(bytes) / took.count());
  } while (Clock::now() < end);
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  // The sum is used, so that the loop is not optimized away.
  return sum == 0 ? 0 : static_cast<uint64_t>(best);
}

std::string SharedMemoryHost() {
  char name[256] = "localhost";
  gethostname(name, sizeof(name) - 1);
  const std::string boot = ReadSmallFile("/proc/sys/kernel/random/boot_id").substr(0, 8);
  struct stat shm;
  const uint64_t device = stat("/dev/shm", &shm) == 0 ? static_cast<uint64_t>(shm.st_dev) : 0;
  return absl::StrCat(name, "#", boot, "-", absl::Hex(device));
}

std::string RandomInstance() {
  std::random_device random;
  const uint64_t high = random(), low = random();
  return absl::StrCat(absl::Hex((high << 32) | low, absl::kZeroPad16));
}

}  // namespace bitshard
