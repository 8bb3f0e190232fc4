#include "worker/metrics.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bitshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<WorkerMetrics> Serve(const WorkerMetrics::Build& build = {"1.2.3", "cpu", "avx2"}) {
  auto metrics = WorkerMetrics::Serve("127.0.0.1", 0, build);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return *std::move(metrics);
}

TEST(WorkerMetrics, SeriesOfARankBeginWithItAtZero) {
  const auto metrics = Serve();
  EXPECT_GT(metrics->port(), 0);
  EXPECT_THAT(metrics->Page(), Not(HasSubstr("rank=")));
  EXPECT_THAT(metrics->Page(),
              HasSubstr("bitshard_weight_load_errors_total{reason=\"NOT_FOUND\"} 0\n"));
  metrics->OnAssigned(1);
  const std::string page = metrics->Page();
  EXPECT_THAT(page, HasSubstr("bitshard_worker_step_seconds_count{rank=\"1\",phase=\"gemm\"} 0\n"));
  EXPECT_THAT(
      page,
      HasSubstr(
          "bitshard_collective_bytes_total{rank=\"1\",op=\"allreduce\",backend=\"cpu\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("bitshard_memory_bytes{rank=\"1\",kind=\"kv\"} 0\n"));
  EXPECT_THAT(page, Not(HasSubstr("rank=\"0\"")));
}

TEST(WorkerMetrics, SayWhatTheWorkerComputesOn) {
  EXPECT_THAT(Serve()->Page(), HasSubstr("bitshard_worker_build_info{version=\"1.2.3\","
                                         "backend=\"cpu\",isa=\"avx2\"} 1\n"));
  const auto metrics = Serve({"1.2.3", "cuda", "sm_90"});
  metrics->OnAssigned(0);
  const std::string page = metrics->Page();
  EXPECT_THAT(page, HasSubstr("bitshard_worker_build_info{version=\"1.2.3\",backend=\"cuda\","
                              "isa=\"sm_90\"} 1\n"));
  EXPECT_THAT(page, HasSubstr("bitshard_collective_seconds_count{rank=\"0\",op=\"broadcast\","
                              "backend=\"nccl\"} 0\n"));
  EXPECT_THAT(page, Not(HasSubstr("backend=\"cpu\"")));
}

TEST(WorkerMetrics, WhatIsLoadedAndBoundIsTold) {
  const auto metrics = Serve();
  metrics->OnMachine(1000, 2000);
  metrics->OnLoadFailed(absl::NotFoundError("gone"));
  metrics->OnAssigned(0);
  LoadedWeights weights;
  weights.arena_bytes = 100;
  weights.vector_bytes = 30;
  weights.read_bytes = 90;
  metrics->OnLoaded(weights, absl::Seconds(2));
  internal::KernelChoice choice;
  choice.set_op("linear");
  choice.set_format("int4");
  choice.set_activations("a16");
  choice.set_kernel("avx2/x");
  choice.set_nodes(7);
  metrics->OnBound({choice}, 50, {});
  metrics->OnCacheAllocated(1000);
  internal::BringUp times;
  times.set_load_us(1'500'000);
  metrics->OnBringUp(times);
  const std::string page = metrics->Page();
  for (const char* line :
       {"bitshard_worker_peak_read_bytes_per_second 1000",
        "bitshard_worker_peak_flops_per_second 2000",
        "bitshard_weight_load_errors_total{reason=\"NOT_FOUND\"} 1",
        "bitshard_memory_bytes{rank=\"0\",kind=\"weights\"} 100",
        "bitshard_memory_bytes{rank=\"0\",kind=\"kv\"} 1000",
        "bitshard_memory_bytes{rank=\"0\",kind=\"workspace\"} 50",
        "bitshard_weight_bytes{rank=\"0\",format=\"vectors\"} 30",
        "bitshard_weight_read_bytes_total{rank=\"0\"} 90",
        "bitshard_weight_load_seconds{rank=\"0\"} 2",
        "bitshard_worker_kernel_info{rank=\"0\",op=\"linear\",format=\"int4\",activations=\"a16\","
        "kernel=\"avx2/x\",speed=\"fast\"} 7",
        "bitshard_worker_bring_up_seconds{rank=\"0\",phase=\"load\"} 1.5"}) {
    EXPECT_THAT(page, HasSubstr(std::string(line) + "\n"));
  }
}

TEST(WorkerMetrics, PhasesOfAStepAddUpToIt) {
  const auto metrics = Serve();
  metrics->OnAssigned(0);
  metrics->OnBound({}, 0,
                   {"embed", "linear+linear", "rope+attention", "all_reduce", "lm_head", "sample"});
  metrics->OnCollective(CollectiveOp::kAllReduce, 64, 2'000'000);
  const auto ms = [](int64_t n) { return n * 1'000'000; };
  metrics->OnStep(absl::Milliseconds(20), 3, {.read_bytes = 500, .flops = 600},
                  {ms(1), ms(4), ms(3), ms(3), ms(2), ms(1)}, /*launched_ahead=*/1);
  metrics->OnIdleStep();
  // The second one: times of ops go on from where they were.
  metrics->OnStep(absl::Milliseconds(5), 0, {}, {ms(1), ms(8), ms(3), ms(3), ms(2), ms(1)},
                  /*launched_ahead=*/2);
  const std::string page = metrics->Page();
  for (const auto& [phase, seconds] :
       {std::pair("gemm", 0.01), std::pair("attention", 0.003), std::pair("collective", 0.002),
        std::pair("other", 0.01)}) {  // of 20 and 5 ms
    const std::string series =
        absl::StrCat("bitshard_worker_step_seconds_sum{rank=\"0\",phase=\"", phase, "\"} ");
    const size_t at = page.find(series);
    ASSERT_NE(at, std::string::npos) << phase;
    EXPECT_NEAR(std::strtod(page.c_str() + at + series.size(), nullptr), seconds, 1e-9) << phase;
  }
  for (const char* line :
       {"bitshard_worker_step_seconds_count{rank=\"0\",phase=\"other\"} 2",
        "bitshard_worker_steps_total{rank=\"0\"} 3",
        "bitshard_worker_steps_ahead_total{rank=\"0\"} 2",
        "bitshard_sampling_seconds_count{rank=\"0\"} 1",
        "bitshard_worker_output_tokens_total{rank=\"0\"} 3",
        "bitshard_model_read_bytes_total{rank=\"0\"} 500",
        "bitshard_model_flops_total{rank=\"0\"} 600",
        "bitshard_collective_bytes_total{rank=\"0\",op=\"allreduce\",backend=\"cpu\"} 64",
        "bitshard_collective_seconds_count{rank=\"0\",op=\"allreduce\",backend=\"cpu\"} 1"}) {
    EXPECT_THAT(page, HasSubstr(std::string(line) + "\n"));
  }
}

TEST(WorkerMetrics, PhasesOfAStepOnADeviceAreOneOrThoseOfItsOps) {
  const auto ms = [](int64_t n) { return n * 1'000'000; };
  const auto value_of = [](const std::string& page, const std::string& series) {
    const size_t at = page.find(series + " ");
    return at == std::string::npos ? -1 : std::strtod(page.c_str() + at + series.size(), nullptr);
  };
  const auto seconds_of = [&](const std::string& page, const char* phase) {
    return value_of(
        page, absl::StrCat("bitshard_worker_step_seconds_sum{rank=\"0\",phase=\"", phase, "\"}"));
  };
  const auto whole = Serve();
  whole->OnAssigned(0);
  whole->OnBound({}, 0, {"device", "sample"});
  whole->OnCollective(CollectiveOp::kAllGather, 64, 2'000'000);
  whole->OnStep(absl::Milliseconds(20), 1, {}, {ms(12), ms(3)}, 0);
  const std::string of_whole = whole->Page();
  EXPECT_NEAR(seconds_of(of_whole, "device"), 0.012, 1e-9);
  EXPECT_NEAR(seconds_of(of_whole, "collective"), 0.002, 1e-9);
  EXPECT_NEAR(seconds_of(of_whole, "other"), 0.006, 1e-9);
  EXPECT_EQ(seconds_of(of_whole, "gemm"), 0);
  EXPECT_NEAR(value_of(of_whole, "bitshard_sampling_seconds_sum{rank=\"0\"}"), 0.003, 1e-9);

  const auto by_ops = Serve();
  by_ops->OnAssigned(0);
  by_ops->OnBound({}, 0,
                  {"device linear+linear", "device attention", "device all_reduce+residual_add",
                   "device rms_norm", "device lm_head", "sample"});
  by_ops->OnCollective(CollectiveOp::kAllGather, 64, 2'000'000);
  by_ops->OnStep(absl::Milliseconds(30), 1, {}, {ms(5), ms(4), ms(3), ms(1), ms(2), ms(1)}, 0);
  const std::string of_ops = by_ops->Page();
  EXPECT_NEAR(seconds_of(of_ops, "gemm"), 0.007, 1e-9);
  EXPECT_NEAR(seconds_of(of_ops, "attention"), 0.004, 1e-9);
  EXPECT_NEAR(seconds_of(of_ops, "collective"), 0.005, 1e-9);
  EXPECT_NEAR(seconds_of(of_ops, "other"), 0.014, 1e-9);
  EXPECT_EQ(seconds_of(of_ops, "device"), 0);
}

TEST(WorkerMetrics, TheTableHasAHelpAndAMeasureForEverything) {
  for (const MetricDef& def : WorkerMetricTable()) {
    EXPECT_FALSE(def.help.empty() || def.when.empty()) << def.name;
    EXPECT_EQ(def.type == MetricType::kHistogram, !def.buckets.bounds.empty()) << def.name;
    EXPECT_EQ(def.type == MetricType::kCounter, absl::EndsWith(def.name, "_total")) << def.name;
  }
}

TEST(WorkerMetrics, AddressThatCannotBeBoundIsUnavailableAndNamed) {
  const absl::Status status = WorkerMetrics::Serve("203.0.113.1", 1, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("203.0.113.1:1"), std::string::npos) << status;
}

}  // namespace
}  // namespace bitshard
