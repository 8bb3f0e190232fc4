// Figures, shares of the bounds, and both ways of telling them.

#include "coordinator/tools/bench_report.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <nlohmann/json.hpp>

namespace bitshard {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;
using ::testing::Not;

// 10, 20 and 30 tokens a second, twice that a CPU second.
BenchLine DecodeLine(uint32_t sequences = 1) {
  BenchLine line{.what = {.prompt_tokens = 90, .output_tokens = 20, .sequences = sequences},
                 .samples = {}};
  for (uint64_t tokens : {20, 60, 40}) {
    line.samples.push_back({.tokens = tokens,
                            .wall_s = 2,
                            .cpu_s = 1,
                            .ttft_s = {0.1, 0.2, 0.6},
                            .gaps_s = {0.1, 0.3}});
  }
  return line;
}

BenchBounds Bounds() {
  return {.step_weight_bytes = 1000,
          .kv_bytes_a_token = 2.0,
          .layer_parameters = 500,
          .peaks = MachinePeaks{.read_bytes_per_s = 100'000,
                                .read_bytes_per_cpu_s = 200'000,
                                .int_ops_per_s = 1e6,
                                .int_ops_per_cpu_s = 4e6},
          .peak_threads = 2,
          .peak_instruction = "vpmaddwd, 256 bits"};
}

TEST(BenchFigures, AreMediansOverTheSamples) {
  const BenchFigures figures = FiguresOf(DecodeLine(), {});
  EXPECT_THAT(figures.tokens_per_s, DoubleEq(20));
  EXPECT_THAT(figures.lowest, DoubleEq(10));
  EXPECT_THAT(figures.highest, DoubleEq(30));
  EXPECT_THAT(*figures.tokens_per_cpu_s, DoubleEq(40));
  EXPECT_THAT(figures.ttft_s, DoubleEq(0.2));
  EXPECT_THAT(*figures.gap_p50_s, DoubleEq(0.1));
  EXPECT_THAT(*figures.gap_p99_s, DoubleEq(0.3));
  EXPECT_FALSE(figures.read_share || figures.int_share) << "shares of bounds that are not known";
}

TEST(BenchFigures, ReadShareCountsWeightsOnceAStepAndEachContext) {
  // A token reads 1000 + 2 * (90 + 10) bytes; of four sequences 250 + 200.
  const BenchFigures one = FiguresOf(DecodeLine(), Bounds());
  EXPECT_THAT(*one.read_share, DoubleEq(20 * 1200 / 100'000.0));
  EXPECT_THAT(*one.read_share_cpu, DoubleEq(40 * 1200 / 200'000.0));
  const BenchFigures four = FiguresOf(DecodeLine(4), Bounds());
  EXPECT_THAT(*four.read_share, DoubleEq(20 * 450 / 100'000.0));
}

TEST(BenchFigures, IntegerShareCountsTwoOperationsAParameter) {
  const BenchFigures figures = FiguresOf(DecodeLine(), Bounds());
  EXPECT_THAT(*figures.int_share, DoubleEq(20 * 1000 / 1e6));
  EXPECT_THAT(*figures.int_share_cpu, DoubleEq(40 * 1000 / 4e6));
}

TEST(BenchFigures, OneSampleWithoutCpuTimeLeavesNoCpuFigure) {
  BenchLine line = DecodeLine();
  line.samples[1].cpu_s.reset();
  const BenchFigures figures = FiguresOf(line, Bounds());
  EXPECT_FALSE(figures.tokens_per_cpu_s || figures.read_share_cpu);
  EXPECT_TRUE(figures.read_share.has_value());
}

TEST(Statistics, MedianAndPercentiles) {
  EXPECT_THAT(Median({3, 1, 2}), DoubleEq(2));
  EXPECT_THAT(Median({4, 1, 3, 2}), DoubleEq(2.5));
  EXPECT_THAT(Median({5}), DoubleEq(5));
  std::vector<double> hundred(100);
  for (int i = 0; i < 100; ++i) hundred[static_cast<size_t>(i)] = 100 - i;
  EXPECT_THAT(Percentile(hundred, 0.5), DoubleEq(50));
  EXPECT_THAT(Percentile(hundred, 0.99), DoubleEq(99));
  EXPECT_THAT(Percentile(hundred, 1), DoubleEq(100));
}

BenchRun MadeRun() {
  BenchRun run;
  run.model = "made \"model\"";
  run.flags = {{"repeat", "3"}};
  run.workers = 2;
  run.bounds = Bounds();
  run.lines = {
      DecodeLine(),
      {.what = {.kind = BenchCase::Kind::kPrefill, .prompt_tokens = 512},
       .samples = {{.tokens = 512, .wall_s = 1, .cpu_s = {}, .ttft_s = {1}, .gaps_s = {}}}}};
  return run;
}

TEST(BenchTable, ColumnsAreAligned) {
  const std::string table = BenchTable(MadeRun());
  EXPECT_THAT(table, HasSubstr("2 workers"));
  EXPECT_THAT(table, HasSubstr("vpmaddwd"));
  const size_t head = table.find("work ");
  ASSERT_NE(head, std::string::npos) << table;
  const std::vector<std::string> rows = absl::StrSplit(table.substr(head), '\n', absl::SkipEmpty());
  ASSERT_EQ(rows.size(), 3u) << table;
  for (const std::string& row : rows) EXPECT_EQ(row.size(), rows[0].size()) << table;
  EXPECT_THAT(rows[1], HasSubstr("24.0 / 24.0 %"));
  EXPECT_THAT(rows[2], HasSubstr("512.0"));
  EXPECT_THAT(rows[2], Not(HasSubstr("24.0"))) << "a prefill has no read share";
}

TEST(BenchTable, SaysWhichRowsCannotBeRightAndWhy) {
  EXPECT_THAT(BenchTable(MadeRun()), Not(HasSubstr("cannot be right")));
  EXPECT_TRUE(nlohmann::json::parse(BenchJson(MadeRun()))["lines"][0]["doubts"].empty());
  BenchRun burst = MadeRun();
  burst.lines[0].samples[1].burst = true;
  EXPECT_THAT(BenchTable(burst),
              HasSubstr("cannot be right: decode 20 at 90: in 1 of 3 measurements"));
  BenchRun above = MadeRun();
  above.bounds.peaks->read_bytes_per_s = 12'000;  // the row reads 24 kB/s
  above.bounds.peaks->int_ops_per_cpu_s = 20'000;
  EXPECT_THAT(BenchTable(above), HasSubstr("decode 20 at 90: 200 % of the read peak"));
  EXPECT_THAT(BenchTable(above), HasSubstr("decode 20 at 90: 200 % of the integer peak"));
  const auto json = nlohmann::json::parse(BenchJson(above));
  EXPECT_EQ(json["lines"][0]["doubts"].size(), 2u);
}

TEST(BenchJson, HoldsEverySample) {
  const auto json = nlohmann::json::parse(BenchJson(MadeRun()));
  EXPECT_EQ(json["service"]["model"], "made \"model\"");
  EXPECT_EQ(json["flags"]["repeat"], "3");
  EXPECT_EQ(json["machine"]["peaks"]["threads"], 2);
  ASSERT_EQ(json["lines"].size(), 2u);
  const auto& decode = json["lines"][0];
  EXPECT_EQ(decode["name"], "decode 20 at 90");
  ASSERT_EQ(decode["samples"].size(), 3u);
  EXPECT_EQ(decode["samples"][1]["tokens"], 60);
  EXPECT_EQ(decode["samples"][1]["gaps_ms"], nlohmann::json({100.0, 300.0}));
  EXPECT_EQ(decode["median"]["tokens_per_s"], 20.0);
  const auto& prefill = json["lines"][1];
  EXPECT_TRUE(prefill["samples"][0]["cpu_s"].is_null());
  EXPECT_TRUE(prefill["median"]["read_share"].is_null());
}

}  // namespace
}  // namespace bitshard
