#include "worker/sample/sampler.h"

#include <algorithm>
#include <array>
#include <bit>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "worker/sample/mass.h"
#include "worker/sample/token_order.h"

namespace bitshard {
namespace {

constexpr size_t kScratch = 8 * Sampler::kCandidates;
// What is added up of a row over the ranks: see sums_.
constexpr size_t kSums = 3;
// Masses are at most 2^40 each: so many of them stay below 2^62.
constexpr uint32_t kMaxVocab = 1 << 22;

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
      local_count_(LocalCount(o)),
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
      sum_requests_(o.max_outputs),
      device_sums_(o.max_outputs),
      my_draws_(o.max_outputs),
      all_draws_(my_draws_.size() * o.world) {
  tasks_.reserve(o.max_outputs);
  fetch_.reserve(o.max_outputs);
}

size_t Sampler::LocalCount(const Options& o) {
  return std::min(o.local_vocab, o.vocab_size - std::min(o.vocab_size, o.vocab_begin));
}

std::optional<size_t> Sampler::LocalTarget(const SampleRow& row, const Options& o) {
  if (!row.target.has_value() || *row.target < o.vocab_begin) return std::nullopt;
  const size_t local = *row.target - o.vocab_begin;
  return local < LocalCount(o) ? std::optional<size_t>(local) : std::nullopt;
}

LogitsRow Sampler::Raw(size_t row) const {
  return {.logits = source_->Row(first_ + row),
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
  CHECK_EQ(logits.size(), rows.size() * options_.local_vocab);
  HostRows source(logits.data(), options_.local_vocab);
  return Sample(source, rows, collective, out);
}

absl::Status Sampler::Sample(RowSource& source, absl::Span<const SampleRow> rows,
                             Collective& collective, absl::Span<SampleOutput> out) {
  CHECK_EQ(collective.world(), options_.world);
  CHECK_LE(rows.size(), states_.size());
  CHECK_EQ(out.size(), rows.size());
  source_ = &source;
  for (first_ = 0; first_ < rows.size(); first_ += rows_) {
    size_t edited = 0;
    for (rows_ = 0; first_ + rows_ < rows.size(); ++rows_) {
      edited += rows[first_ + rows_].edits != nullptr ? 1 : 0;
      if (edited > kEditedRows) break;
    }
    const absl::Status status =
        Run(rows.subspan(first_, rows_), collective, out.subspan(first_, rows_));
    if (absl::IsInternal(status)) collective.Abort();
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status Sampler::Run(absl::Span<const SampleRow> rows, Collective& collective,
                          absl::Span<SampleOutput> out) {
  Plan(rows);
  RETURN_IF_ERROR(ScanLocal(rows));
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

absl::Status Sampler::ScanLocal(absl::Span<const SampleRow> rows) {
  fetch_.clear();
  for (size_t i = 0; i < rows_; ++i) {
    if (states_[i].is_here) fetch_.push_back(first_ + i);
  }
  RETURN_IF_ERROR(source_->Fetch(fetch_));
  ForRows([&](int64_t i, int thread) {
    const Header header = states_[i].is_here ? ScanRow(i, rows[i], thread) : TakeScan(i);
    const auto words = std::bit_cast<std::array<uint64_t, kHeaderWords>>(header);
    std::copy(words.begin(), words.end(), mine_.begin() + i * kHeaderWords);
  });
  return absl::OkStatus();
}

Sampler::Header Sampler::ScanRow(size_t i, const SampleRow& params, int thread) {
  const RowState& s = states_[i];
  const uint32_t begin = options_.vocab_begin;
  const LogitsRow raw = Raw(i);
  const RowSummary of_raw =
      SummarizeRow(raw.logits, begin, local_count_, unit_max_.data() + i * units_);
  RowSummary summary = of_raw;
  if (s.edited.has_value() && !of_raw.bad) {
    float* const edited = edited_ + *s.edited * options_.local_vocab;
    EditLogits(*params.edits, raw.logits, begin, local_count_,
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
    header.draw = DrawFromRow(Local(i), {.scale = {.temperature = s.temperature}}, NoiseOf(params));
  }
  return header;
}

Sampler::Header Sampler::TakeScan(size_t i) {
  const RowState& s = states_[i];
  const LogitScan& scan = s.scanned->scan;
  const auto keys = absl::MakeSpan(mine_).subspan(s.candidates.at, s.candidates.most);
  std::fill(keys.begin(), keys.end(), 0);
  Header header{.max = scan.max,
                .token = scan.token,
                .bad = scan.bad,
                .n_candidates = 0,
                .draw = {},
                .raw_max = scan.max,
                .n_raw = 0};
  if (scan.bad != 0) return header;
  CHECK_LE(scan.n_candidates, keys.size());
  std::copy_n(s.scanned->keys.begin(), scan.n_candidates, keys.begin());
  header.n_candidates = scan.n_candidates;
  if (s.filter == Filter::kNone)
    header.draw = {.score = scan.draw_score, .logit = scan.draw_logit, .token = scan.draw_token};
  return header;
}

absl::Status Sampler::BringHere(absl::FunctionRef<bool(const RowState&)> wanted) {
  fetch_.clear();
  for (size_t i = 0; i < rows_; ++i) {
    if (!states_[i].is_here && wanted(states_[i])) fetch_.push_back(first_ + i);
  }
  if (fetch_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(source_->Fetch(fetch_));
  for (const size_t at : fetch_) {
    const size_t i = at - first_;
    states_[i].is_here = true;
    SummarizeRow(Raw(i).logits, options_.vocab_begin, local_count_, unit_max_.data() + i * units_);
  }
  return absl::OkStatus();
}

absl::Status Sampler::SumOnDevice() {
  bool any = false;
  for (size_t i = 0; i < rows_; ++i) {
    const RowState& s = states_[i];
    LogitSumRequest& request = sum_requests_[i] = {};
    if (s.is_here || !(s.wants_raw_sum || s.wants_mass)) continue;
    any = true;
    request.raw = s.wants_raw_sum ? 1 : 0;
    request.mass = s.wants_mass ? 1 : 0;
    request.max = s.max;
    request.temperature = s.temperature;
    request.floor = s.floor;
  }
  if (!any) return absl::OkStatus();
  return source_->Sum(first_, absl::MakeSpan(sum_requests_).first(rows_),
                      absl::MakeSpan(device_sums_).first(rows_));
}

absl::Status Sampler::ReduceSums(absl::Span<const SampleRow> rows, Collective& collective) {
  bool any = false;
  for (size_t i = 0; i < rows_; ++i) any = any || states_[i].wants_raw_sum || states_[i].wants_mass;
  if (!any) return absl::OkStatus();
  RETURN_IF_ERROR(SumOnDevice());
  ForRows([&](int64_t i, int) {
    const RowState& s = states_[i];
    int64_t* const sums = sums_.data() + kSums * i;
    const std::optional<size_t> target = LocalTarget(rows[i], options_);
    float logit = 0;  // its bits are 0
    if (s.is_here) {
      sums[0] = s.wants_raw_sum ? RawSum(Raw(i), s.raw_max) : 0;
      sums[1] = s.wants_mass ? MassSum(Local(i), s.kept.scale) : 0;
      if (target.has_value()) logit = Raw(i).logits[*target];
    } else {
      sums[0] = s.wants_raw_sum ? device_sums_[i].raw : 0;
      sums[1] = s.wants_mass ? device_sums_[i].mass : 0;
      if (target.has_value()) logit = s.scanned->target_logit;
    }
    sums[2] = int64_t{std::bit_cast<uint32_t>(logit)};
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
  RETURN_IF_ERROR(BringHere([](const RowState& s) { return !s.done; }));
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
