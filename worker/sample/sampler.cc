#include "worker/sample/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/math.h"
#include "kernels/base/status_macros.h"
#include "worker/sample/mass.h"
#include "worker/sample/token_order.h"

namespace bitshard {
namespace {

// How many merged candidates are kept of a row, most: more than a rank's list, because the lists
// interleave.
constexpr size_t kMerged = 256;
constexpr size_t kScratch = 8 * Sampler::kCandidates;
constexpr size_t kHeaderWords = 5;
// What is added up of a row over the ranks: see sums_.
constexpr size_t kSums = 3;
// Masses are at most 2^40 each: so many of them stay below 2^62.
constexpr uint32_t kMaxVocab = 1 << 22;
constexpr int kMaxWorld = 64;

NoiseKey NoiseOf(const SampleRow& row) {
  return {.seed = row.params.seed, .position = row.position, .choice = row.params.choice};
}

// The mass that top-p must reach: p of `mass`, at least 1.
int64_t TopPTarget(float top_p, int64_t mass) {
  const double share = std::ceil(static_cast<double>(top_p) * static_cast<double>(mass));
  return std::clamp<int64_t>(static_cast<int64_t>(share), 1, std::max<int64_t>(mass, 1));
}

template <typename T>
absl::Span<uint8_t> Bytes(absl::Span<T> values) {
  return absl::MakeSpan(reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Bind(const Options& o) {
  if (o.vocab_size == 0 || o.vocab_size > kMaxVocab || o.vocab_begin % kUnit != 0 ||
      o.max_outputs < 1 || o.world < 1 || o.world > kMaxWorld || o.local_vocab > kMaxVocab ||
      o.vocab_begin > kMaxVocab) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampler: vocabulary of ", o.vocab_size, ", rank holds ", o.local_vocab, " from ",
        o.vocab_begin, ", ", o.max_outputs, " outputs, ", o.world, " ranks: sizes must be 1 to ",
        kMaxVocab, ", shards start at multiples of ", kUnit));
  }
  const uint32_t end = o.vocab_begin + o.local_vocab;
  if (o.local_vocab > 0 && end < o.vocab_size && end % kUnit != 0) {
    return absl::InvalidArgumentError(absl::StrCat("sampler: a shard ends at token ", end, " of ",
                                                   o.vocab_size, ", inside a unit of ", kUnit,
                                                   "; sums would depend on the cut"));
  }
  return std::unique_ptr<Sampler>(new Sampler(o));
}

Sampler::Sampler(const Options& o)
    : options_(o),
      local_count_(std::min(o.local_vocab, o.vocab_size - std::min(o.vocab_size, o.vocab_begin))),
      units_((local_count_ + kUnit - 1) / kUnit),
      search_(o.vocab_begin, o.world),
      own_edited_(o.edited != nullptr ? 0 : EditedRows(o.max_outputs) * size_t{o.local_vocab}),
      edited_(o.edited != nullptr ? o.edited : own_edited_.data()),
      states_(o.max_outputs),
      unit_max_(o.max_outputs * units_),
      edited_unit_max_(EditedRows(o.max_outputs) * units_),
      counts_(local_count_ * (o.pool == nullptr ? 1 : o.pool->threads())),
      scratch_(kScratch * (o.pool == nullptr ? 1 : o.pool->threads())),
      mine_(o.max_outputs * (kHeaderWords + kCandidates) +
            EditedRows(o.max_outputs) * kMaxTopLogprobs),
      all_(mine_.size() * o.world),
      merged_(o.max_outputs * kMerged),
      raw_merged_(EditedRows(o.max_outputs) * kMaxTopLogprobs),
      sums_(kSums * o.max_outputs),
      my_draws_(o.max_outputs),
      all_draws_(my_draws_.size() * o.world) {
  tasks_.reserve(o.max_outputs);
}

LogitsRow Sampler::Raw(size_t row) const {
  return {.logits = logits_ + row * options_.local_vocab,
          .unit_max = unit_max_.data() + row * units_,
          .begin = options_.vocab_begin,
          .count = local_count_,
          .isa = options_.isa};
}

LogitsRow Sampler::Local(size_t row) const {
  LogitsRow local = Raw(row);
  if (const std::optional<size_t> edited = states_[row].edited; edited.has_value()) {
    local.logits = edited_ + *edited * options_.local_vocab;
    local.unit_max = edited_unit_max_.data() + *edited * units_;
  }
  return local;
}

void Sampler::ForRows(ThreadPool::Fn fn) {
  if (options_.pool != nullptr && rows_ > 1) {
    options_.pool->ParallelFor(static_cast<int64_t>(rows_), fn);
  } else {
    for (size_t i = 0; i < rows_; ++i) fn(static_cast<int64_t>(i), 0);
  }
}

Sampler::Header Sampler::GatheredHeader(int rank, size_t row) const {
  std::array<uint64_t, kHeaderWords> words;
  std::copy_n(all_.data() + rank * mine_keys_ + row * kHeaderWords, kHeaderWords, words.begin());
  return std::bit_cast<Header>(words);
}

absl::Status Sampler::Sample(absl::Span<const float> logits, absl::Span<const SampleRow> rows,
                             Collective& collective, absl::Span<SampleOutput> out) {
  CHECK_EQ(collective.world(), options_.world);
  CHECK_LE(rows.size(), states_.size());
  CHECK_EQ(out.size(), rows.size());
  CHECK_EQ(logits.size(), rows.size() * options_.local_vocab);
  for (size_t at = 0; at < rows.size(); at += rows_) {
    size_t edited = 0;
    for (rows_ = 0; at + rows_ < rows.size(); ++rows_) {
      edited += rows[at + rows_].edits != nullptr ? 1 : 0;
      if (edited > kEditedRows) break;
    }
    logits_ = logits.data() + at * options_.local_vocab;
    const absl::Status status = Run(rows.subspan(at, rows_), collective, out.subspan(at, rows_));
    if (absl::IsInternal(status)) collective.Abort();
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status Sampler::Run(absl::Span<const SampleRow> rows, Collective& collective,
                          absl::Span<SampleOutput> out) {
  Plan(rows);
  ScanLocal(rows);
  RETURN_IF_ERROR(
      collective.AllGather(Bytes(absl::MakeSpan(mine_).first(mine_keys_)),
                           Bytes(absl::MakeSpan(all_).first(mine_keys_ * options_.world))));
  for (size_t i = 0; i < rows_; ++i) RETURN_IF_ERROR(Merge(i, rows[i], out[i]));
  RETURN_IF_ERROR(ReduceSums(rows, collective));
  RETURN_IF_ERROR(Search(rows, collective));
  RETURN_IF_ERROR(DrawLater(rows, collective));
  RETURN_IF_ERROR(FindRawLogits(collective));

  for (size_t i = 0; i < rows_; ++i) {
    const RowState& s = states_[i];
    SampleOutput& o = out[i];
    if (o.non_finite || o.none_allowed) continue;
    if (s.winner.token >= options_.vocab_size) {
      return absl::InternalError(absl::StrCat("sampler: the ranks' numbers for output ", i, " of ",
                                              rows_, " contradict each other: no token"));
    }
    o.token = s.winner.token;
    if (!s.wants_raw_sum) continue;
    o.logprob = LogProbability(s.winner.logit, s.raw_max, s.raw_sum);
    o.n_top = static_cast<int>(std::min<size_t>(rows[i].params.top_logprobs, s.raw_merged.size()));
    for (int j = 0; j < o.n_top; ++j) {
      const uint64_t key = s.raw_merged[j];
      o.top[j] = {KeyToken(key), LogProbability(KeyLogit(key), s.raw_max, s.raw_sum)};
    }
  }
  return absl::OkStatus();
}

// What each row needs, from numbers that all ranks have.
void Sampler::Plan(absl::Span<const SampleRow> rows) {
  size_t at = rows_ * kHeaderWords, edited = 0;
  const auto share = [&](size_t want) {
    const Lists lists = {.most = std::min<size_t>(want, options_.vocab_size), .at = at};
    at += lists.most;
    return lists;
  };
  for (size_t i = 0; i < rows_; ++i) {
    const SampleParams& p = rows[i].params;
    CHECK_LE(p.top_logprobs, uint32_t{kMaxTopLogprobs});
    CHECK_LT(rows[i].target.value_or(0), options_.vocab_size);
    CHECK(rows[i].edits == nullptr || !rows[i].target.has_value());
    RowState& s = states_[i];
    s = {};
    s.temperature = std::min(p.temperature, std::numeric_limits<float>::max());
    s.top_k = p.top_k >= options_.vocab_size ? 0 : p.top_k;
    s.top_p = p.top_p;
    s.floor = p.min_p > 0 ? static_cast<float>(Log(std::min(p.min_p, 1.0f)))
                          : -std::numeric_limits<float>::infinity();
    s.wants_raw_sum = p.want_logprob || p.top_logprobs > 0 || rows[i].target.has_value();
    const bool filters = s.top_k > 0 || p.top_p < 1 || p.min_p > 0;
    const bool greedy = !(p.temperature > 0) || s.top_k == 1 || rows[i].target.has_value();
    s.filter = greedy ? Filter::kGreedy : filters ? Filter::kPrefix : Filter::kNone;

    size_t want = 0;
    if (s.filter == Filter::kPrefix) {
      const bool few = s.top_k > 0 && s.top_k <= kCandidates;
      want = few ? s.top_k : kCandidates;
    }
    if (rows[i].edits != nullptr) {
      s.edited = edited++;
      s.raw_candidates = share(p.top_logprobs);
    } else {
      want = std::max<size_t>(want, p.top_logprobs);
    }
    s.candidates = share(want);
  }
  mine_keys_ = at;
}

void Sampler::ScanLocal(absl::Span<const SampleRow> rows) {
  ForRows([&](int64_t i, int thread) {
    const RowState& s = states_[i];
    const uint32_t begin = options_.vocab_begin;
    const LogitsRow raw = Raw(i);
    const RowSummary of_raw =
        SummarizeRow(raw.logits, begin, local_count_, unit_max_.data() + i * units_);
    RowSummary summary = of_raw;
    if (s.edited.has_value() && !of_raw.bad) {
      float* const edited = edited_ + *s.edited * options_.local_vocab;
      EditLogits(*rows[i].edits, raw.logits, begin, local_count_,
                 counts_.data() + thread * local_count_, edited);
      summary =
          SummarizeRow(edited, begin, local_count_, edited_unit_max_.data() + *s.edited * units_);
    }
    Header header{.max = summary.max,
                  .token = summary.token,
                  .bad = of_raw.bad ? 1u : 0u,
                  .n_candidates = 0,
                  .draw = {},
                  .raw_max = of_raw.max,
                  .n_raw = 0};
    const auto scratch = absl::MakeSpan(scratch_).subspan(thread * kScratch, kScratch);
    // The first of the row's order; what the list has room for besides is 0.
    const auto list = [&](const LogitsRow& row, const Lists& lists) {
      const auto keys = absl::MakeSpan(mine_).subspan(lists.at, lists.most);
      const size_t n = of_raw.bad ? 0 : TopTokens(row, scratch, keys);
      std::fill(keys.begin() + n, keys.end(), 0);
      return static_cast<uint32_t>(n);
    };
    header.n_candidates = list(Local(i), s.candidates);
    if (s.edited.has_value()) header.n_raw = list(raw, s.raw_candidates);
    if (!of_raw.bad && s.filter == Filter::kNone) {
      header.draw =
          DrawFromRow(Local(i), {.scale = {.temperature = s.temperature}}, NoiseOf(rows[i]));
    }
    const auto words = std::bit_cast<std::array<uint64_t, kHeaderWords>>(header);
    std::copy(words.begin(), words.end(), mine_.begin() + i * kHeaderWords);
  });
}

absl::Status Sampler::Merge(size_t row, const SampleRow& params, SampleOutput& out) {
  RowState& s = states_[row];
  out = {};
  s.max = s.raw_max = -std::numeric_limits<float>::infinity();
  uint32_t best = kNoToken;
  for (int r = 0; r < options_.world; ++r) {
    const Header header = GatheredHeader(r, row);
    if (header.bad != 0) out.non_finite = true;
    if (header.max > s.max || (header.max == s.max && header.token < best)) {
      s.max = header.max;
      best = header.token;
    }
    s.raw_max = std::max(s.raw_max, header.raw_max);
    s.winner.Offer(header.draw.score, header.draw.logit, header.draw.token);
  }
  if (best == kNoToken && !s.edited.has_value() && !out.non_finite)
    return absl::InternalError("sampler: no rank holds any of the vocabulary");
  out.none_allowed = best == kNoToken && !out.non_finite;
  if (out.non_finite || out.none_allowed) {
    s.done = true;
    s.wants_raw_sum = false;
    return absl::OkStatus();
  }
  bool open = false;
  const auto merged = absl::MakeSpan(merged_).subspan(row * kMerged, kMerged);
  ASSIGN_OR_RETURN(const size_t size, MergeLists(row, /*raw=*/false, merged, &open));
  s.merged = merged.first(size);
  s.all_merged = !open && size < kMerged;
  s.raw_merged = s.merged;
  if (s.edited.has_value()) {
    const auto raw =
        absl::MakeSpan(raw_merged_).subspan(*s.edited * kMaxTopLogprobs, s.raw_candidates.most);
    ASSIGN_OR_RETURN(const size_t raw_size, MergeLists(row, /*raw=*/true, raw, &open));
    s.raw_merged = raw.first(raw_size);
  }
  s.done = s.filter != Filter::kPrefix;
  if (s.filter == Filter::kGreedy) s.winner = {.score = 0, .logit = s.max, .token = best};
  if (s.filter == Filter::kPrefix) DecidePrefix(row, NoiseOf(params));
  return absl::OkStatus();
}

// It is certain until a full list ends, behind which its rank may have more.
absl::StatusOr<size_t> Sampler::MergeLists(size_t row, bool raw, absl::Span<uint64_t> merged,
                                           bool* open) {
  const Lists& lists = raw ? states_[row].raw_candidates : states_[row].candidates;
  size_t taken[kMaxWorld] = {}, count[kMaxWorld] = {};
  for (int r = 0; r < options_.world; ++r) {
    const Header header = GatheredHeader(r, row);
    count[r] = raw ? header.n_raw : header.n_candidates;
    if (count[r] > lists.most) {
      return absl::InternalError(absl::StrCat("sampler: rank ", r, " says it sent ", count[r],
                                              " candidates where ", lists.most, " fit"));
    }
  }
  size_t size = 0;
  *open = lists.most == 0;
  while (!*open && size < merged.size()) {
    uint64_t best = 0;
    int from = -1;
    for (int r = 0; r < options_.world; ++r) {
      if (taken[r] == count[r]) continue;
      const uint64_t key = all_[r * mine_keys_ + lists.at + taken[r]];
      if (from < 0 || key > best) {
        best = key;
        from = r;
      }
    }
    if (from < 0) break;
    merged[size++] = best;
    *open = ++taken[from] == lists.most;
  }
  return size;
}

// Either the kept tokens lie in the certain candidates: draw; or say what must be found out.
void Sampler::DecidePrefix(size_t row, const NoiseKey& noise) {
  RowState& s = states_[row];
  s.kept.scale = {.max = s.max, .temperature = s.temperature, .floor = s.floor};
  size_t& above = s.above_floor;
  while (above < s.merged.size() &&
         Exponent(KeyLogit(s.merged[above]), s.max, s.temperature) >= s.floor)
    ++above;
  const bool floor_seen = above < s.merged.size() || s.all_merged;
  const bool count_seen = s.top_k > 0 && s.top_k <= above;
  if (!floor_seen && !count_seen) {
    s.wants_mass = s.top_p < 1 && s.top_k == 0;
    s.draw_later =
        !(s.top_p < 1) && s.top_k == 0;  // min-p alone is a rule that each rank can apply
    return;
  }
  const size_t length = count_seen ? s.top_k : above;
  if (!(s.top_p < 1)) return DrawPrefix(s, length, noise);
  s.mass = 0;
  for (uint64_t key : s.merged.first(length))
    s.mass += MassOfExponent(Exponent(KeyLogit(key), s.max, s.temperature));
  s.target = TopPTarget(s.top_p, s.mass);
  CHECK(TryTopP(s, length, noise)) << "a prefix holds less than its own mass";
}

void Sampler::DrawPrefix(RowState& s, size_t length, const NoiseKey& noise) {
  s.winner = DrawFromKeys(s.merged.first(length), s.temperature, noise);
  s.done = true;
}

bool Sampler::TryTopP(RowState& s, size_t most, const NoiseKey& noise) {
  int64_t before = 0;
  for (size_t i = 0; i < most; ++i) {
    before += MassOfExponent(Exponent(KeyLogit(s.merged[i]), s.max, s.temperature));
    if (before < s.target) continue;
    DrawPrefix(s, i + 1, noise);
    return true;
  }
  return false;
}

absl::Status Sampler::ReduceSums(absl::Span<const SampleRow> rows, Collective& collective) {
  bool any = false;
  for (size_t i = 0; i < rows_; ++i) any = any || states_[i].wants_raw_sum || states_[i].wants_mass;
  if (!any) return absl::OkStatus();
  ForRows([&](int64_t i, int) {
    const RowState& s = states_[i];
    int64_t* const sums = sums_.data() + kSums * i;
    sums[0] = s.wants_raw_sum ? RawSum(Raw(i), s.raw_max) : 0;
    sums[1] = s.wants_mass ? MassSum(Local(i), s.kept.scale) : 0;
    // Below vocab_begin it wraps around, and is no local token either.
    const uint32_t local = rows[i].target.value_or(kNoToken) - options_.vocab_begin;
    const bool mine = rows[i].target.has_value() && local < local_count_;
    sums[2] = mine ? int64_t{std::bit_cast<uint32_t>(Raw(i).logits[local])} : 0;
  });
  RETURN_IF_ERROR(collective.AllReduceSum(absl::MakeSpan(sums_).first(kSums * rows_)));
  for (size_t i = 0; i < rows_; ++i) {
    RowState& s = states_[i];
    s.raw_sum = sums_[kSums * i];
    if (rows[i].target.has_value()) {
      const float logit = std::bit_cast<float>(static_cast<uint32_t>(sums_[kSums * i + 2]));
      s.winner = {.score = 0, .logit = logit, .token = *rows[i].target};
    }
    if (!s.wants_mass) continue;
    s.mass = sums_[kSums * i + 1];
    s.target = TopPTarget(s.top_p, s.mass);
    TryTopP(s, s.above_floor, NoiseOf(rows[i]));
  }
  return absl::OkStatus();
}

// First round: by count for rows with top-k, by mass for those with top-p alone. Second round: by
// mass for rows with both.
absl::Status Sampler::Search(absl::Span<const SampleRow> rows, Collective& collective) {
  for (const bool second : {false, true}) {
    tasks_.clear();
    for (size_t i = 0; i < rows_; ++i) {
      RowState& s = states_[i];
      if (s.done || s.draw_later) continue;
      const bool by_count = s.top_k > 0 && !second;
      tasks_.push_back({.row = static_cast<int>(i),
                        .logits = Local(i),
                        .scale = s.kept.scale,
                        .by_count = by_count,
                        .target = by_count ? int64_t{s.top_k} : s.target,
                        .want_ties = !by_count || !(s.top_p < 1)});
    }
    if (tasks_.empty()) break;
    RETURN_IF_ERROR(search_.Run(absl::MakeSpan(tasks_), collective));
    for (const SearchTask& task : tasks_) {
      RowState& s = states_[task.row];
      if (!task.want_ties) {  // top-p follows, over what top-k keeps
        s.mass = task.kept_mass;
        s.target = TopPTarget(s.top_p, s.mass);
        TryTopP(s, s.above_floor, NoiseOf(rows[task.row]));
        continue;
      }
      s.kept.boundary = task.boundary;
      s.kept.ties = task.local_ties;
      s.draw_later = true;
    }
  }
  return absl::OkStatus();
}

absl::Status Sampler::DrawLater(absl::Span<const SampleRow> rows, Collective& collective) {
  size_t n = 0;
  for (size_t i = 0; i < rows_; ++i) {
    if (states_[i].draw_later)
      my_draws_[n++] = DrawFromRow(Local(i), states_[i].kept, NoiseOf(rows[i]));
  }
  if (n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(
      collective.AllGather(Bytes(absl::MakeSpan(my_draws_).first(n)),
                           Bytes(absl::MakeSpan(all_draws_).first(n * options_.world))));
  size_t at = 0;
  for (size_t i = 0; i < rows_; ++i) {
    RowState& s = states_[i];
    if (!s.draw_later) continue;
    for (int r = 0; r < options_.world; ++r) {
      const Draw& draw = all_draws_[r * n + at];
      s.winner.Offer(draw.score, draw.logit, draw.token);
    }
    ++at;
    s.done = true;
  }
  return absl::OkStatus();
}

absl::Status Sampler::FindRawLogits(Collective& collective) {
  const auto wants = [&](size_t i) {
    return states_[i].edited.has_value() && states_[i].wants_raw_sum;
  };
  size_t n = 0;
  for (size_t i = 0; i < rows_; ++i) {
    if (!wants(i)) continue;
    const uint32_t local = states_[i].winner.token - options_.vocab_begin;
    sums_[n++] = local < local_count_ ? int64_t{std::bit_cast<uint32_t>(Raw(i).logits[local])} : 0;
  }
  if (n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(collective.AllReduceSum(absl::MakeSpan(sums_).first(n)));
  n = 0;
  for (size_t i = 0; i < rows_; ++i) {
    if (!wants(i)) continue;
    states_[i].winner.logit = std::bit_cast<float>(static_cast<uint32_t>(sums_[n++]));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
