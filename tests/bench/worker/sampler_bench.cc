// Microseconds of the sampler a row, one rank that holds the whole vocabulary, beside reading the
// same logits once (a sum, the bound of every sampler) in the same run.
//
//   bazel run -c opt //tests/bench/worker:sampler_bench
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/cpu_features.h"
#include "worker/collective/collective.h"
#include "worker/sample/sampler.h"

namespace bitshard {
namespace {

constexpr int kRows = 8, kRounds = 40;

// CPU time of this thread, which does all of the work: others on the machine count less.
double Now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

template <typename Fn>
std::vector<double> MicrosecondsARow(const Fn& fn) {
  std::vector<double> us;
  for (int round = 0; round < kRounds; ++round) {
    const double start = Now();
    fn();
    us.push_back((Now() - start) / kRows);
  }
  std::sort(us.begin(), us.end());
  return us;
}

void Bench(uint32_t vocab, float spread) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size_t{vocab} * kRows);
  for (float& v : logits) v = normal(random);
  volatile float sink = 0;
  const double read_us = MicrosecondsARow([&] {
    float lanes[16] = {};
    for (size_t i = 0; i < logits.size(); i += 16) {
      for (int j = 0; j < 16; ++j) lanes[j] += logits[i + j];
    }
    for (float lane : lanes) sink = sink + lane;
  })[0];
  std::printf("vocabulary %u, logits of deviation %.1f; reading them %.1f us a row\n", vocab,
              spread, read_us);

  const struct {
    const char* name;
    SampleParams params;
  } kCases[] = {{"greedy", {}},
                {"greedy, logprobs", {.top_logprobs = 5, .want_logprob = true}},
                {"temperature", {.temperature = 0.8f}},
                {"top_k 40", {.temperature = 0.8f, .top_k = 40}},
                {"top_p 0.95", {.temperature = 0.8f, .top_p = 0.95f}},
                {"min_p 0.05", {.temperature = 0.8f, .min_p = 0.05f}},
                {"top_k 1000, top_p 0.95", {.temperature = 0.8f, .top_k = 1000, .top_p = 0.95f}}};
  auto sampler = Sampler::Bind({.vocab_size = vocab,
                                .vocab_begin = 0,
                                .local_vocab = vocab,
                                .max_outputs = kRows,
                                .world = 1,
                                .isa = BestIsa()});
  CHECK_OK(sampler.status());
  const auto solo = MakeSoloCollective();
  for (const auto& c : kCases) {
    std::vector<SampleRow> rows(kRows, SampleRow{c.params, 0});
    std::vector<SampleOutput> out(kRows);
    uint64_t position = 0;
    const std::vector<double> us = MicrosecondsARow([&] {
      for (SampleRow& row : rows) row.position = ++position;
      CHECK_OK((*sampler)->Sample(logits, rows, *solo, absl::MakeSpan(out)));
    });
    std::printf("  %-24s %8.1f us a row, %5.1f x reading; median of %d rounds %.1f\n", c.name,
                us[0], us[0] / read_us, kRounds, us[kRounds / 2]);
  }
}

// Greedy rows with edits of the logits, beside the same rows without: the copy that is edited, the
// counting of a long history, and the turns when there are more such rows than a turn takes.
void BenchEdits(uint32_t vocab, int n_rows) {
  constexpr int kPrompt = 3000, kOutput = 1000;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(size_t{vocab} * static_cast<size_t>(n_rows));
  for (float& v : logits) v = normal(random);
  std::vector<int32_t> history(kPrompt + kOutput);
  for (int32_t& token : history) token = static_cast<int32_t>(random() % vocab);
  const TokenBias bias = {.token = 7, .bias = 1};
  LogitEdits one_bias, penalties;
  one_bias.biases = absl::MakeConstSpan(&bias, 1);
  penalties.repetition = 1.1f;
  penalties.frequency = penalties.presence = 0.1f;
  penalties.prompt = absl::MakeConstSpan(history).first(kPrompt);
  penalties.output = absl::MakeConstSpan(history).subspan(kPrompt);
  auto sampler = Sampler::Bind({.vocab_size = vocab,
                                .vocab_begin = 0,
                                .local_vocab = vocab,
                                .max_outputs = n_rows,
                                .world = 1,
                                .isa = BestIsa()});
  CHECK_OK(sampler.status());
  const auto solo = MakeSoloCollective();
  std::printf("vocabulary %u, %d greedy rows; history of %zu tokens\n", vocab, n_rows,
              history.size());
  const struct {
    const char* name;
    const LogitEdits* edits;
  } kCases[] = {{"no edits", nullptr}, {"one bias", &one_bias}, {"all penalties", &penalties}};
  for (const auto& c : kCases) {
    SampleRow row;
    row.edits = c.edits;
    std::vector<SampleRow> rows(static_cast<size_t>(n_rows), row);
    std::vector<SampleOutput> out(rows.size());
    const std::vector<double> us = MicrosecondsARow(
        [&] { CHECK_OK((*sampler)->Sample(logits, rows, *solo, absl::MakeSpan(out))); });
    std::printf("  %-24s %8.1f us a row\n", c.name, us[0] * kRows / n_rows);
  }
}

}  // namespace
}  // namespace bitshard

int main() {
  bitshard::Bench(49'152, 3.0f);
  bitshard::Bench(49'152, 0.5f);
  bitshard::Bench(151'936, 3.0f);
  for (const uint32_t vocab : {49'152u, 151'936u}) {
    for (const int rows : {16, 64}) bitshard::BenchEdits(vocab, rows);
  }
}
