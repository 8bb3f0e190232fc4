// Microseconds of one all-reduce between two processes, over shared memory and over Gloo on
// loopback, beside the same exchange over a Unix socket pair in the same run.
//
//   bazel run -c opt //tests/bench/worker:collective_bench
//
// All numbers are the median of kRounds rounds; "spread" is (slowest - fastest) / median of shm.
// Over a real link Gloo is slower by the link's own latency and bandwidth.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "tests/support/unique_id.h"
#include "worker/collective/collective.h"
#include "worker/collective/gloo.h"

namespace bitshard {
namespace {

constexpr int kRounds = 9;

struct Times {
  double median_us, spread;
};

Times Measure(int repeats, const std::function<void()>& operation) {
  std::vector<double> us;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) operation();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                     .count() /
                 repeats);
  }
  std::sort(us.begin(), us.end());
  return {us[kRounds / 2], (us.back() - us.front()) / us[kRounds / 2]};
}

// One process writes and then reads, the other reads and then writes, in pieces that the socket's
// buffers hold.
void SocketSum(int fd, int rank, std::vector<int64_t>& values, std::vector<int64_t>& theirs) {
  const auto all = [fd](auto transfer, auto* data, size_t bytes) {
    for (auto* p = reinterpret_cast<char*>(data); bytes > 0;) {
      const ssize_t n = transfer(fd, p, bytes);
      if (n <= 0) std::abort();
      p += n;
      bytes -= n;
    }
  };
  constexpr size_t kPiece = 4096;
  for (size_t at = 0; at < values.size(); at += kPiece) {
    const size_t n = std::min(kPiece, values.size() - at) * sizeof(int64_t);
    if (rank == 0) all(::write, values.data() + at, n);
    all(::read, theirs.data() + at, n);
    if (rank == 1) all(::write, values.data() + at, n);
  }
  for (size_t i = 0; i < values.size(); ++i) values[i] += theirs[i];
}

// Sends `mine` to the other end of the socket pair and gets what it has sent.
absl::StatusOr<std::vector<std::string>> Tell(int fd, int rank, const std::string& mine) {
  std::string theirs(mine.size(), '\0');
  size_t got = 0;
  if (write(fd, mine.data(), mine.size()) != static_cast<ssize_t>(mine.size()))
    return absl::InternalError("write");
  while (got < theirs.size()) {
    const ssize_t n = read(fd, theirs.data() + got, theirs.size() - got);
    if (n <= 0) return absl::InternalError("read");
    got += n;
  }
  return rank == 0 ? std::vector<std::string>{mine, theirs}
                   : std::vector<std::string>{theirs, mine};
}

int Main() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  const std::string id = UniqueId("bench");
  const int rank = fork() == 0 ? 1 : 0;
  auto shm = JoinShmCollective(id, rank, 2, absl::Seconds(10));
  auto gloo =
      JoinGlooCollective({.id = id,
                          .rank = rank,
                          .world = 2,
                          .address = "127.0.0.1",
                          .tell = [&](const auto& mine) { return Tell(ends[rank], rank, mine); }},
                         absl::Seconds(10));
  for (const auto* joined : {&shm, &gloo}) {
    if (joined->ok()) continue;
    std::fprintf(stderr, "%s\n", joined->status().ToString().c_str());
    return 1;
  }
  if (rank == 0) {
    std::printf("%10s %10s %10s %10s %8s %8s\n", "bytes", "shm us", "gloo us", "socket us", "ratio",
                "spread");
  }
  for (size_t bytes :
       {size_t{4096}, size_t{576 * 8}, size_t{64} << 10, size_t{1} << 20, size_t{8} << 20}) {
    std::vector<int64_t> values(bytes / sizeof(int64_t), 0), theirs(values.size());
    const int repeats = bytes < 100'000 ? 4000 : 200;
    const auto sum = [&](Collective& collective) {
      if (!collective.AllReduceSum(absl::MakeSpan(values)).ok()) std::abort();
    };
    const Times ours = Measure(repeats, [&] { sum(**shm); });
    const Times tcp = Measure(repeats / 4, [&] { sum(**gloo); });
    const Times socket = Measure(repeats / 4, [&] { SocketSum(ends[rank], rank, values, theirs); });
    if (rank == 0) {
      std::printf("%10zu %10.2f %10.2f %10.2f %8.1f %7.0f%%\n", bytes, ours.median_us,
                  tcp.median_us, socket.median_us, socket.median_us / ours.median_us,
                  100 * ours.spread);
    }
  }
  std::fflush(stdout);
  if (rank == 1) _exit(0);
  return wait(nullptr) > 0 ? 0 : 1;
}

}  // namespace
}  // namespace bitshard

int main() { return bitshard::Main(); }
