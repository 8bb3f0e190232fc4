// Known patterns through every operation and size class, before a rank reports ready.
//
// A rank that sees a wrong element goes on to the end and tells the others there, so that all ranks
// refuse together instead of one refusing and the rest waiting.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "worker/collective/collective.h"

namespace bitshard {
namespace {

// Empty, one, odd, a token's sums, pages, and pieces: one staging buffer of shm is 65536 values.
constexpr size_t kSizes[] = {0, 1, 7, 576, 4096, 8193, 65536, 65537, 200003};

// SplitMix64: every byte of every element differs between ranks, sizes and positions.
uint64_t Pattern(uint64_t rank, uint64_t size, uint64_t index) {
  uint64_t z =
      (rank + 1) * 0x9e3779b97f4a7c15u + size * 0xd1342543de82ef95u + index * 0x2545f4914f6cdd1du;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class SelfTest {
 public:
  explicit SelfTest(Collective& collective)
      : collective_(collective), rank_(collective.rank()), world_(collective.world()) {}

  absl::Status Run() {
    for (size_t n : kSizes) {
      RETURN_IF_ERROR(Reduce(n));
      RETURN_IF_ERROR(Gather(n));
      for (int root = 0; root < world_; ++root) RETURN_IF_ERROR(Broadcast(n, root));
    }
    return Agree();
  }

 private:
  absl::Status Reduce(size_t n) {
    std::vector<int64_t> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = static_cast<int64_t>(Pattern(rank_, n, i));
    RETURN_IF_ERROR(collective_.AllReduceSum(absl::MakeSpan(values)));
    for (size_t i = 0; i < n; ++i) {
      uint64_t want = 0;
      for (int r = 0; r < world_; ++r) want += Pattern(r, n, i);
      if (!Same("all_reduce", n, i, static_cast<uint64_t>(values[i]), want)) break;
    }
    return absl::OkStatus();
  }

  absl::Status Gather(size_t n) {
    std::vector<uint8_t> mine(n), all(n * world_);
    for (size_t i = 0; i < n; ++i) mine[i] = static_cast<uint8_t>(Pattern(rank_, n, i));
    RETURN_IF_ERROR(collective_.AllGather(mine, absl::MakeSpan(all)));
    for (size_t i = 0; i < all.size(); ++i) {
      if (!Same("all_gather", n, i, all[i], static_cast<uint8_t>(Pattern(i / n, n, i % n)))) break;
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(size_t n, int root) {
    std::vector<uint8_t> data(n);
    for (size_t i = 0; i < n; ++i) data[i] = static_cast<uint8_t>(Pattern(rank_, n, i));
    RETURN_IF_ERROR(collective_.Broadcast(absl::MakeSpan(data), root));
    for (size_t i = 0; i < n; ++i) {
      if (!Same("broadcast", n, i, data[i], static_cast<uint8_t>(Pattern(root, n, i)))) break;
    }
    return absl::OkStatus();
  }

  // Remembers the first difference.
  bool Same(const char* operation, size_t n, size_t index, uint64_t got, uint64_t want) {
    if (got == want) return true;
    if (wrong_.empty()) {
      wrong_ = absl::StrCat(operation, " of ", n, " elements: element ", index, " is 0x",
                            absl::Hex(got), " and should be 0x", absl::Hex(want));
    }
    return false;
  }

  // Rank by rank, so that one faulty operation cannot hide the verdict of a rank from itself.
  absl::Status Agree() {
    std::vector<int64_t> faults(world_, 0);
    faults[rank_] = wrong_.empty() ? 0 : 1;
    RETURN_IF_ERROR(collective_.AllReduceSum(absl::MakeSpan(faults)));
    if (!wrong_.empty()) {
      return absl::InternalError(absl::StrCat("collective self-test on rank ", rank_, " of ",
                                              world_, ": ", wrong_,
                                              "; memory or a rank of this group is faulty"));
    }
    for (int r = 0; r < world_; ++r) {
      if (faults[r] != 0) {
        return absl::InternalError(absl::StrCat("collective self-test: rank ", r, " of ", world_,
                                                " received wrong data; its log says which"));
      }
    }
    return absl::OkStatus();
  }

  Collective& collective_;
  const int rank_;
  const int world_;
  std::string wrong_;
};

}  // namespace

absl::Status SelfTestCollective(Collective& collective) { return SelfTest(collective).Run(); }

}  // namespace bitshard
