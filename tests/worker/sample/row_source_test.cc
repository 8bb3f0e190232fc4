// The sampler over rows that a device has looked through: the results of rows in the host's memory,
// and no row is fetched that the scan decides.
#include "worker/sample/row_source.h"

#include <bit>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/sample/sampler_group.h"
#include "worker/sample/row_scan.h"

namespace bitshard {
namespace {

// What a device would say, by the CPU's own passes.
class ScannedRows final : public RowSource {
 public:
  ScannedRows(const Shard& shard, uint32_t vocab_size, std::vector<float> logits,
              absl::Span<const SampleRow> rows)
      : shard_(shard), vocab_size_(vocab_size), logits_(std::move(logits)), rows_(rows) {
    const uint32_t held = vocab_size_ - std::min(vocab_size_, shard.begin);
    count_ = std::min(shard.count, held);
    for (size_t i = 0; i < rows.size(); ++i) Scan(i);
  }

  std::optional<ScannedRow> Scanned(size_t row) const override {
    if (Sampler::NeedsWholeRow(rows_[row])) return std::nullopt;
    const std::optional<uint32_t>& target = rows_[row].target;
    const bool mine = target && *target >= shard_.begin && *target - shard_.begin < count_;
    return ScannedRow{scans_[row], keys_[row],
                      mine ? logits_[row * shard_.count + *target - shard_.begin]
                           : std::numeric_limits<float>::quiet_NaN()};  // nobody's business
  }
  absl::Status Sum(size_t first, absl::Span<const LogitSumRequest> requests,
                   absl::Span<LogitSums> sums) override {
    if (!fail_.ok()) return fail_;
    for (size_t i = 0; i < requests.size(); ++i) {
      const LogitSumRequest& asked = requests[i];
      sums[i] = {};
      if (asked.raw != 0) sums[i].raw = RawSum(OnDevice(first + i), asked.max);
      if (asked.mass == 0) continue;
      sums[i].mass =
          MassSum(OnDevice(first + i),
                  {.max = asked.max, .temperature = asked.temperature, .floor = asked.floor});
    }
    return absl::OkStatus();
  }
  absl::Status Fetch(absl::Span<const size_t> rows) override {
    if (!fail_.ok() && !rows.empty()) return fail_;
    for (const size_t row : rows) {
      if (!fetched_.insert(row).second) continue;
      std::copy_n(logits_.begin() + row * shard_.count, shard_.count,
                  here_.begin() + row * shard_.count);
    }
    return absl::OkStatus();
  }
  const float* Row(size_t row) const override { return here_.data() + row * shard_.count; }

  const std::set<size_t>& fetched() const { return fetched_; }
  void Fail(const absl::Status& status) { fail_ = status; }

 private:
  LogitsRow OnDevice(size_t row) const {
    return {.logits = logits_.data() + row * shard_.count,
            .unit_max = unit_max_[row].data(),
            .begin = shard_.begin,
            .count = count_};
  }
  void Scan(size_t i) {
    std::vector<float>& unit_max = unit_max_.emplace_back((count_ + kUnit - 1) / kUnit);
    const float* const logits = logits_.data() + i * shard_.count;
    const RowSummary summary = SummarizeRow(logits, shard_.begin, count_, unit_max.data());
    LogitScan& scan = scans_.emplace_back();
    std::vector<uint64_t>& keys = keys_.emplace_back();
    // What a device leaves undefined.
    scan.max = std::numeric_limits<float>::quiet_NaN();
    scan.bad = summary.bad ? 1 : 0;
    if (summary.bad || Sampler::NeedsWholeRow(rows_[i])) return;
    scan.max = summary.max + 0.0f;  // zero has no sign there
    scan.token = summary.token;
    const LogitScanRequest asked = Sampler::ScanRequestOf(rows_[i], vocab_size_);
    keys.resize(asked.candidates);
    std::vector<uint64_t> scratch(1024);
    keys.resize(TopTokens(OnDevice(i), absl::MakeSpan(scratch), absl::MakeSpan(keys)));
    scan.n_candidates = static_cast<uint32_t>(keys.size());
    if (asked.draws == 0) return;
    const Draw draw =
        DrawFromRow(OnDevice(i), {.scale = {.temperature = asked.temperature}},
                    {.seed = asked.seed, .position = asked.position, .choice = asked.choice});
    scan.draw_score = draw.score;
    scan.draw_logit = draw.logit;
    scan.draw_token = draw.token;
  }

  const Shard shard_;
  const uint32_t vocab_size_;
  uint32_t count_ = 0;
  const std::vector<float> logits_;
  const absl::Span<const SampleRow> rows_;
  std::vector<float> here_ =
      std::vector<float>(logits_.size(), std::numeric_limits<float>::quiet_NaN());
  std::vector<std::vector<float>> unit_max_;
  std::vector<LogitScan> scans_;
  std::vector<std::vector<uint64_t>> keys_;
  std::set<size_t> fetched_;
  absl::Status fail_;
};

struct Case {
  Rows logits;
  std::vector<SampleRow> rows;
  std::vector<std::unique_ptr<EditedRow>> edits;
};

Case RandomCase(std::mt19937_64& random, int count) {
  Case made;
  for (int i = 0; i < count; ++i) {
    made.logits.push_back(RandomLogits(random, kVocab));
    SampleRow row = RandomRow(random);
    if (random() % 5 == 0) {
      made.edits.push_back(RandomEdits(random, kVocab));
      row.edits = &made.edits.back()->edits;
    } else if (random() % 7 == 0) {
      row.target = static_cast<uint32_t>(random() % kVocab);
    }
    if (random() % 11 == 0)
      made.logits.back()[random() % kVocab] = std::numeric_limits<float>::quiet_NaN();
    made.rows.push_back(row);
  }
  return made;
}

// The outputs of rank 0; all ranks must agree. `fetched`: by rank.
std::vector<SampleOutput> SampleScanned(const std::vector<Shard>& cut, const Case& made,
                                        std::vector<std::set<size_t>>* fetched) {
  const int world = static_cast<int>(cut.size()), count = static_cast<int>(made.rows.size());
  ThreadRanks ranks(world);
  fetched->resize(world);
  std::vector<std::vector<SampleOutput>> out(world, std::vector<SampleOutput>(count));
  ranks.Run([&](int rank, Collective& collective) {
    const Shard& shard = cut[rank];
    std::vector<float> local;
    for (const std::vector<float>& row : made.logits) {
      for (uint32_t i = shard.begin; i < shard.begin + shard.count; ++i)
        local.push_back(i < kVocab ? row[i] : std::numeric_limits<float>::infinity());
    }
    auto sampler = Sampler::Bind({.vocab_size = kVocab,
                                  .vocab_begin = shard.begin,
                                  .local_vocab = shard.count,
                                  .max_outputs = count,
                                  .world = world});
    CHECK_OK(sampler.status());
    ScannedRows source(shard, kVocab, std::move(local), made.rows);
    CHECK_OK((*sampler)->Sample(source, made.rows, collective, absl::MakeSpan(out[rank])));
    (*fetched)[rank] = source.fetched();
  });
  for (const auto& of_rank : out) {
    for (int i = 0; i < count; ++i) CHECK(Group::Same(out[0][i], of_rank[i])) << i;
  }
  return out[0];
}

TEST(RowSource, ScannedRowsGiveTheResultsOfRowsInTheHostsMemory) {
  std::mt19937_64 random(31);
  constexpr int kRows = 40;  // of which more have edits than are sampled at once
  for (int batch = 0; batch < 8; ++batch) {
    const Case made = RandomCase(random, kRows);
    for (const std::vector<Shard>& cut : Cuts()) {
      Group host(kVocab, cut, kRows);
      const std::vector<SampleOutput> want = host.Sample(made.logits, made.rows);
      std::vector<std::set<size_t>> fetched;
      const std::vector<SampleOutput> got = SampleScanned(cut, made, &fetched);
      for (int i = 0; i < kRows; ++i) {
        ASSERT_TRUE(Group::Same(got[i], want[i]))
            << "batch " << batch << " row " << i << " of " << cut.size() << " ranks: token "
            << got[i].token << " and not " << want[i].token << "; " << Describe(made.rows[i]);
      }
    }
  }
}

TEST(RowSource, OnlyRowsThatTheScanDoesNotDecideAreFetched) {
  std::mt19937_64 random(32);
  std::normal_distribution<float> normal;
  Case made;
  std::set<size_t> want;
  const auto add = [&](const SampleParams& params, bool is_fetched) {
    std::vector<float> x(kVocab);
    for (float& v : x) v = 4 * normal(random);
    if (is_fetched) want.insert(made.rows.size());
    made.logits.push_back(std::move(x));
    made.rows.push_back({.params = params});
  };
  add({}, false);
  add({.top_logprobs = 20, .want_logprob = true}, false);
  add({.temperature = 1, .want_logprob = true}, false);
  add({.temperature = 1, .top_k = 40, .top_p = 0.9f}, false);
  add({.temperature = 1, .top_p = 0.9f}, false);
  add({.temperature = 1, .min_p = 0.1f}, false);
  add({.temperature = 100, .top_p = 0.9f}, true);    // nearly all tokens are kept
  add({.temperature = 1, .top_k = 400}, true);       // more than all scans list
  add({.temperature = 100, .min_p = 0.001f}, true);  // likewise
  EditedRow edited;
  edited.forbidden = {3};
  edited.View();
  add({.temperature = 1}, true);
  made.rows.back().edits = &edited.edits;
  add({.top_logprobs = 3}, false);
  made.rows.back().target = 5;
  for (const std::vector<Shard>& cut : Cuts()) {
    std::vector<std::set<size_t>> fetched;
    SampleScanned(cut, made, &fetched);
    for (size_t rank = 0; rank < cut.size(); ++rank) {
      // A rank without tokens has nothing to fetch, and asks for all.
      if (cut[rank].count > 0 && cut[rank].begin < kVocab) {
        EXPECT_EQ(fetched[rank], want) << cut.size() << " ranks, rank " << rank;
      }
    }
  }
}

TEST(RowSource, ItsErrorsComeBack) {
  const std::vector<float> logits(kVocab, 0.0f);
  for (const bool sums : {false, true}) {
    std::vector<SampleRow> rows(1);
    rows[0].params = {.temperature = 1, .top_k = sums ? 0u : 500u, .want_logprob = sums};
    auto sampler = *Sampler::Bind({.vocab_size = kVocab, .local_vocab = kVocab});
    ScannedRows source({0, kVocab}, kVocab, logits, rows);
    source.Fail(absl::DataLossError("gone"));
    const auto solo = MakeSoloCollective();
    std::vector<SampleOutput> out(1);
    EXPECT_EQ(sampler->Sample(source, rows, *solo, absl::MakeSpan(out)).code(),
              absl::StatusCode::kDataLoss)
        << sums;
  }
}

}  // namespace
}  // namespace bitshard
