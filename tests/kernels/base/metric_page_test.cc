#include "kernels/base/metric_page.h"

#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<MetricDef> Table() {
  MetricDef calls;
  calls.name = "calls_total";
  calls.type = MetricType::kCounter;
  calls.labels = {{"kind", {"a", "b"}}, {"code", {"ok", "bad"}}};
  calls.help = "Calls.";
  calls.when = "At the end.";
  MetricDef time;
  time.name = "time_seconds";
  time.type = MetricType::kHistogram;
  time.unit = "seconds";
  time.buckets = {"T", {0.5, 1, 2}};
  time.help = "Time.";
  MetricDef open;
  open.name = "open_info";
  open.type = MetricType::kGauge;
  open.labels = {{"name", {}, "one"}};
  open.help = "Info.";
  return {calls, time, open};
}

TEST(MetricTable, OneTwoFiveEndsWithTheFirstThatIsEnough) {
  EXPECT_THAT(OneTwoFive(20), ElementsAre(1, 2, 5, 10, 20));
  EXPECT_THAT(OneTwoFive(21), ElementsAre(1, 2, 5, 10, 20, 50));
  EXPECT_THAT(OneTwoFive(0), ElementsAre(1));
}

TEST(MetricTable, ThereFromTheStartAreAllCombinationsOrWhatIsListed) {
  MetricDef def = Table()[0];
  EXPECT_EQ(SeriesFromStart(def).size(), 4u);
  def.from_start = {{"a", "ok"}};
  EXPECT_THAT(SeriesFromStart(def), ElementsAre(ElementsAre("a", "ok")));
  EXPECT_TRUE(SeriesFromStart(Table()[2]).empty()) << "an open label";
}

TEST(MetricTable, TheDescriptionHasEveryPart) {
  const std::string text = DescribeMetrics(Table());
  EXPECT_THAT(text, HasSubstr("| `bitshard_calls_total` | counter |  | `kind` = a, b; `code` = ok, "
                              "bad | Calls. | At the end. |\n"));
  EXPECT_THAT(text, HasSubstr("| `bitshard_time_seconds` | histogram T | seconds |"));
  EXPECT_THAT(text, HasSubstr("`name` (one)"));
  EXPECT_THAT(text, HasSubstr("| T | 0.5 1 2 |"));
}

TEST(MetricHistogram, ABoundBelongsToItsBucket) {
  MetricHistogram histogram({1, 2});
  for (const double value : {0., 1., 1.5, 2., 3., std::numeric_limits<double>::quiet_NaN()})
    histogram.Observe(value);
  EXPECT_EQ(histogram.CountOf(0), 2u);
  EXPECT_EQ(histogram.CountOf(1), 2u);
  EXPECT_EQ(histogram.CountOf(2), 1u);
  EXPECT_EQ(histogram.sum(), 7.5);
}

TEST(MetricPage, HasItsSeriesAtZeroBeforeAnythingHappens) {
  MetricPage page(Table(), {{"engine", "0"}});
  const std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("bitshard_calls_total{engine=\"0\",kind=\"b\",code=\"bad\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("bitshard_time_seconds_bucket{engine=\"0\",le=\"2\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("bitshard_time_seconds_count{engine=\"0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("# HELP bitshard_calls_total Calls.\n# TYPE bitshard_calls_total "
                              "counter\n"));
}

TEST(MetricPage, BucketsOnThePageAreCumulative) {
  MetricPage page(Table(), {});
  for (const double value : {0.1, 0.7, 0.8, 9.}) page.Histogram("time_seconds")->Observe(value);
  const std::string text = page.Text();
  EXPECT_THAT(text, HasSubstr("bitshard_time_seconds_bucket{le=\"0.5\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("bitshard_time_seconds_bucket{le=\"2\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("bitshard_time_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("bitshard_time_seconds_count 4\n"));
}

TEST(MetricPage, AnInfoHasOneSeriesAtATime) {
  MetricPage page(Table(), {});
  page.SetInfo("open_info", {"before"});
  page.SetInfo("open_info", {"after"});
  EXPECT_THAT(page.Text(), HasSubstr("bitshard_open_info{name=\"after\"} 1\n"));
  EXPECT_THAT(page.Text(), Not(HasSubstr("before")));
}

TEST(MetricPage, TheCollectorRunsBeforeEachScrape) {
  MetricPage page(Table(), {});
  int runs = 0;
  page.SetCollector([&] { page.Value("calls_total", {"a", "ok"})->Set(++runs); });
  page.Text();
  EXPECT_THAT(page.Text(), HasSubstr("bitshard_calls_total{kind=\"a\",code=\"ok\"} 2\n"));
  page.SetCollector(nullptr);
  page.Text();
  EXPECT_EQ(runs, 2);
}

TEST(MetricPage, NothingIsLostBetweenThreads) {
  constexpr int kThreads = 4, kEach = 20000;
  MetricPage page(Table(), {});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&page] {
      MetricValue* const calls = page.Value("calls_total", {"a", "ok"});
      MetricHistogram* const time = page.Histogram("time_seconds");
      for (int i = 0; i < kEach; ++i) {
        calls->Add();
        time->Observe(1);
        if (i % 1000 == 0) page.Text();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(page.Value("calls_total", {"a", "ok"})->Get(), kThreads * kEach);
  EXPECT_EQ(page.Histogram("time_seconds")->CountOf(1), uint64_t{kThreads} * kEach);
  EXPECT_EQ(page.Histogram("time_seconds")->sum(), kThreads * kEach);
}

TEST(MetricPageDeathTest, WhatIsNotInTheTableIsAMistakeOfTheProgram) {
  MetricPage page(Table(), {});
  EXPECT_DEATH(page.Value("unheard_of"), "no metric unheard_of");
  EXPECT_DEATH(page.Value("calls_total", {"a", "late"}), "has no code=late");
  EXPECT_DEATH(page.Value("time_seconds"), "is a histogram");
}

TEST(ProcessMetrics, AreThoseOfThisProcess) {
  MetricPage page(ProcessMetricTable(), {{"engine", "0"}});
  SetProcessMetrics(page);
  EXPECT_GT(page.Value("process_resident_memory_bytes")->Get(), 1 << 20);
  EXPECT_GE(page.Value("process_virtual_memory_bytes")->Get(),
            page.Value("process_resident_memory_bytes")->Get());
  EXPECT_GE(page.Value("process_open_fds")->Get(), 3);
  EXPECT_GE(page.Value("process_max_fds")->Get(), page.Value("process_open_fds")->Get());
  EXPECT_GE(page.Value("process_threads")->Get(), 1);
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  EXPECT_NEAR(page.Value("process_start_time_seconds")->Get(), now, 3600);
  EXPECT_THAT(page.Text(), HasSubstr("\nprocess_open_fds ")) << "no labels";
}

}  // namespace
}  // namespace bitshard
