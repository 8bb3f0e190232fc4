#include "worker/sample/boundary_search.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "worker/sample/mass.h"
#include "worker/sample/token_order.h"

namespace bitshard {
namespace {

struct Digit {
  int shift, bits;
};
constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};

// Which bin holds the last token of the prefix; false when all bins together do not reach the
// target.
bool Narrow(SearchTask& task, const int64_t* counts, const int64_t* masses, const Digit& digit) {
  for (int bin = (1 << digit.bits) - 1; bin >= 0; --bin) {
    const int64_t reached =
        task.by_count ? task.before_count + counts[bin] : task.before_mass + masses[bin];
    if (reached >= task.target) {
      task.prefix = task.prefix << digit.bits | static_cast<uint32_t>(bin);
      task.ties = counts[bin];
      return true;
    }
    task.before_count += counts[bin];
    task.before_mass += masses[bin];
  }
  return false;
}

// The last digit is known: how many of the equals are kept.
absl::Status Close(SearchTask& task) {
  task.boundary = task.prefix;
  const int64_t mass = MassOfExponent(
      Exponent(LogitOfSortable(task.boundary), task.scale.max, task.scale.temperature));
  if (task.by_count) {
    task.ties_kept = task.target - task.before_count;
  } else {
    // The bin reached the target, which it could not with massless tokens.
    if (mass > 0) task.ties_kept = (task.target - task.before_mass + mass - 1) / mass;
  }
  if (task.ties_kept < 1 || task.ties_kept > task.ties) {
    return absl::InternalError(absl::StrCat(
        "sampler: the summed histograms contradict themselves (", task.ties_kept, " of ", task.ties,
        " equal tokens kept); a rank works with other numbers than the rest"));
  }
  task.kept_mass = task.before_mass + task.ties_kept * mass;
  return absl::OkStatus();
}

}  // namespace

BoundarySearch::BoundarySearch(uint32_t vocab_begin, int world)
    : vocab_begin_(vocab_begin),
      world_(world),
      histogram_(size_t{kSearchRows} * 2 * kMaxBins),
      my_ties_(kSearchRows + 1),
      all_ties_(my_ties_.size() * world) {}

absl::Status BoundarySearch::Run(absl::Span<SearchTask> tasks, Collective& collective) {
  for (size_t at = 0; at < tasks.size(); at += kSearchRows) {
    RETURN_IF_ERROR(RunGroup(tasks.subspan(at, kSearchRows), collective));
  }
  return absl::OkStatus();
}

absl::Status BoundarySearch::RunGroup(absl::Span<SearchTask> tasks, Collective& collective) {
  bool open[kSearchRows];
  std::fill(open, open + kSearchRows, true);
  for (const Digit& digit : kDigits) {
    const size_t bins = size_t{1} << digit.bits;
    const auto all = absl::MakeSpan(histogram_).first(tasks.size() * 2 * bins);
    std::fill(all.begin(), all.end(), 0);
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (!open[i]) continue;
      int64_t* counts = all.data() + i * 2 * bins;
      AddHistogram(tasks[i].logits, tasks[i].scale, tasks[i].prefix, digit.shift, digit.bits,
                   counts, counts + bins);
    }
    RETURN_IF_ERROR(collective.AllReduceSum(all));
    for (size_t i = 0; i < tasks.size(); ++i) {
      const int64_t* counts = all.data() + i * 2 * bins;
      if (open[i]) open[i] = Narrow(tasks[i], counts, counts + bins, digit);
    }
  }
  bool share = false;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!open[i]) {
      tasks[i].boundary = 0;
      tasks[i].kept_mass = tasks[i].before_mass;
      continue;
    }
    RETURN_IF_ERROR(Close(tasks[i]));
    tasks[i].local_ties = tasks[i].ties_kept;  // right when all are kept: no rank has more
    share = share || (tasks[i].want_ties && tasks[i].ties_kept < tasks[i].ties);
  }
  return share ? ShareTies(tasks, collective) : absl::OkStatus();
}

// Ranks hold ascending pieces of the vocabulary: those before mine take their equals first.
absl::Status BoundarySearch::ShareTies(absl::Span<SearchTask> tasks, Collective& collective) {
  std::fill(my_ties_.begin(), my_ties_.end(), 0);
  my_ties_[0] = vocab_begin_;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i].boundary != 0) my_ties_[1 + i] = CountEqual(tasks[i].logits, tasks[i].boundary);
  }
  const auto bytes = [](std::vector<int64_t>& v) {
    return absl::MakeSpan(reinterpret_cast<uint8_t*>(v.data()), v.size() * sizeof(int64_t));
  };
  RETURN_IF_ERROR(collective.AllGather(bytes(my_ties_), bytes(all_ties_)));
  for (size_t i = 0; i < tasks.size(); ++i) {
    int64_t before = 0;
    for (int r = 0; r < world_; ++r) {
      const int64_t* theirs = all_ties_.data() + r * my_ties_.size();
      if (r != collective.rank() && theirs[0] < vocab_begin_) before += theirs[1 + i];
    }
    tasks[i].local_ties = std::clamp<int64_t>(tasks[i].ties_kept - before, 0, my_ties_[1 + i]);
  }
  return absl::OkStatus();
}

}  // namespace bitshard
