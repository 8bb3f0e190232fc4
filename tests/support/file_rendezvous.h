// How ranks of a test tell each other where they are: files in the test's folder, so that threads
// and child processes both can. In a service the coordinator carries it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <unistd.h>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "worker/collective/tell_ranks.h"

namespace bitshard {

inline TellRanksFn FileRendezvous(const std::string& id, int rank, int world,
                                  absl::Duration timeout = absl::Seconds(30),
                                  const std::atomic<bool>* stop = nullptr) {
  return [=](const std::string& mine) -> absl::StatusOr<std::vector<std::string>> {
    const char* folder = std::getenv("TEST_TMPDIR");
    const auto path = [&](int r) {
      return absl::StrCat(folder == nullptr ? "/tmp" : folder, "/rendezvous-", id, "-", r);
    };
    const std::string written = absl::StrCat(path(rank), ".", getpid(), ".new");
    std::ofstream(written, std::ios::binary) << mine;
    if (std::rename(written.c_str(), path(rank).c_str()) != 0)
      return absl::InternalError("cannot write " + path(rank));
    const absl::Time deadline = absl::Now() + timeout;
    std::vector<std::string> all(world);
    for (int r = 0; r < world; ++r) {
      for (;;) {
        std::ifstream in(path(r), std::ios::binary);
        if (in) {
          all[r].assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
          break;
        }
        if (stop != nullptr && stop->load()) return absl::CancelledError("called off");
        if (absl::Now() >= deadline)
          return absl::UnavailableError(absl::StrCat("rank ", r, " told nothing"));
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    return all;
  };
}

}  // namespace bitshard
