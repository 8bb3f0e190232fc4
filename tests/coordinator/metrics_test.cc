#include "coordinator/metrics.h"

#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

CoordinatorMetrics::Info Info() {
  CoordinatorMetrics::Info info;
  info.version = "1";
  info.model_name = "tiny";
  info.kv_cache_type = "bf16";
  info.activations = "a16";
  info.fingerprint = "abc";
  info.family = "llama";
  info.weight_formats = "q4_1";
  info.world = 2;
  info.context_tokens = 2048;
  return info;
}

// The value of the one series of this name with these labels among its own; -1 when there is none,
// -2 when several fit.
double Value(const std::string& page, const std::string& name,
             const std::vector<std::string>& labels = {}) {
  double value = -1;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::StartsWith(line, name) || line.size() <= name.size() ||
        (line[name.size()] != '{' && line[name.size()] != ' ')) {
      continue;
    }
    bool fits = true;
    for (const std::string& label : labels) fits = fits && absl::StrContains(line, label);
    if (!fits) continue;
    if (value != -1) return -2;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << std::string(line);
  }
  return value;
}

TEST(CoordinatorMetrics, EverySeriesIsThereFromTheStartAtZero) {
  CoordinatorMetrics metrics(Info());
  const std::string page = metrics.Page();
  EXPECT_EQ(Value(page, "bitshard_model_info", {R"(numerics="none")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_requests_total",
                  {R"(finished_reason="worker_lost")", R"(grpc_code="UNAVAILABLE")"}),
            0);
  EXPECT_EQ(
      Value(page, "bitshard_requests_total", {R"(finished_reason="stop")", R"(grpc_code="OK")"}),
      0);
  EXPECT_EQ(Value(page, "bitshard_admission_rejections_total", {R"(reason="queue_full")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_time_to_first_token_seconds_count"), 0);
  EXPECT_EQ(Value(page, "bitshard_inter_token_latency_seconds_bucket", {R"(le="0.001")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_e2e_request_latency_seconds_count"), 0);
  EXPECT_EQ(
      Value(page, "bitshard_generation_tokens_total", {R"(model_name="tiny")", R"(engine="0")"}),
      0);
  EXPECT_EQ(Value(page, "bitshard_step_seconds_count", {R"(kind="decode")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_requests_running"), 0);
  EXPECT_EQ(Value(page, "bitshard_kv_blocks", {R"(state="quarantined")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_worker_up", {R"(rank="1")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_group_state", {R"(state="forming")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_build_info", {R"(version="1")", R"(backend="cpu")"}), 1);
  EXPECT_GT(Value(page, "process_resident_memory_bytes"), 0);
  EXPECT_GT(Value(page, "process_start_time_seconds"), 1e9);
  EXPECT_EQ(Value(page, "bitshard_request_prompt_tokens_bucket", {R"(le="5000")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_request_prompt_tokens_bucket", {R"(le="10000")"}), -1)
      << "beyond the context";
}

TEST(CoordinatorMetrics, AnEndedRequestIsCountedOnceInEverything) {
  CoordinatorMetrics metrics(Info());
  metrics.FirstToken(absl::Milliseconds(30));
  metrics.InterToken(absl::Milliseconds(3));
  metrics.PromptTokens(7, 2);
  metrics.GeneratedTokens(1);
  metrics.GeneratedTokens(1);
  RequestSummary summary;
  summary.reason = EndReason::kLength;
  summary.prompt_tokens = 7;
  summary.cached_tokens = 2;
  summary.completion_tokens = 2;
  summary.longest_choice = 2;
  summary.max_tokens = 2;
  summary.preemptions = 1;
  summary.frontend = absl::Milliseconds(1);
  summary.queue = absl::Milliseconds(10);
  summary.prefill = absl::Milliseconds(20);
  summary.decode = absl::Milliseconds(3);
  summary.recompute = absl::Milliseconds(5);
  summary.after_first_token = absl::Milliseconds(8);
  summary.e2e = absl::Milliseconds(39);
  metrics.Ended(summary);
  const std::string page = metrics.Page();
  EXPECT_EQ(Value(page, "bitshard_prompt_tokens_total"), 7);
  EXPECT_EQ(Value(page, "bitshard_prompt_tokens_cached_total"), 2);
  EXPECT_EQ(Value(page, "bitshard_generation_tokens_total"), 2);
  EXPECT_EQ(Value(page, "bitshard_request_prefill_kv_computed_tokens_sum"), 5);
  EXPECT_EQ(Value(page, "bitshard_request_num_preemptions_sum"), 1);
  EXPECT_NEAR(Value(page, "bitshard_e2e_request_latency_seconds_sum"), 0.039, 1e-9);
  EXPECT_NEAR(Value(page, "bitshard_request_inference_time_seconds_sum"), 0.028, 1e-9);
  EXPECT_NEAR(Value(page, "bitshard_request_time_per_output_token_seconds_sum"), 0.008, 1e-9);
  double phases = 0;
  for (const char* phase : {"frontend", "queue", "prefill", "decode", "recompute", "paused"}) {
    const std::string name = absl::StrCat("bitshard_request_", phase, "_time_seconds");
    EXPECT_EQ(Value(page, name + "_count"), 1);
    phases += Value(page, name + "_sum");
  }
  EXPECT_NEAR(phases, 0.039, 1e-9);
  EXPECT_EQ(Value(page, "bitshard_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(Value(page, "bitshard_ended_without_token_total"), 0);
}

TEST(CoordinatorMetrics, ARequestOfSeveralChoicesIsOneRequest) {
  CoordinatorMetrics metrics(Info());
  RequestSummary summary;
  summary.choices = 3;
  summary.completion_tokens = 12;
  summary.longest_choice = 5;
  summary.after_first_token = absl::Milliseconds(8);
  metrics.Ended(summary);
  const std::string page = metrics.Page();
  EXPECT_EQ(Value(page, "bitshard_request_params_n_sum"), 3);
  EXPECT_EQ(Value(page, "bitshard_request_params_n_count"), 1);
  EXPECT_EQ(Value(page, "bitshard_request_generation_tokens_sum"), 12);
  EXPECT_EQ(Value(page, "bitshard_request_max_num_generation_tokens_sum"), 5);
  EXPECT_NEAR(Value(page, "bitshard_request_time_per_output_token_seconds_sum"), 0.002, 1e-9);
  EXPECT_EQ(Value(page, "bitshard_e2e_request_latency_seconds_count"), 1);
}

TEST(CoordinatorMetrics, TheLedgersOfFrontendAndEngineAddUp) {
  CoordinatorMetrics metrics(Info());
  for (int i = 0; i < 10; ++i) metrics.Received(Face::kOwn);
  metrics.Received(Face::kVllm);
  metrics.Refused(RejectReason::kBadRequest);
  metrics.Refused(RejectReason::kBadRequest);
  metrics.SetSources(
      [] {
        EngineStats stats;
        stats.group = EngineStats::GroupState::kReady;
        stats.received = 8;
        stats.rejected = 2;
        stats.finished = 3;
        stats.running = 1;
        stats.waiting = 2;
        stats.waiting_deferred = 1;
        stats.ledger.Rejected(RejectReason::kBadRequest);
        stats.ledger.Rejected(RejectReason::kQueueFull);
        stats.ledger.Ended(EndReason::kStop, absl::StatusCode::kOk);
        stats.ledger.Ended(EndReason::kStop, absl::StatusCode::kOk);
        stats.ledger.Ended(EndReason::kError, absl::StatusCode::kDataLoss);
        return stats;
      },
      [] { return GroupSnapshot(); });
  const auto check = [&metrics] {
    const std::string page = metrics.Page();
    EXPECT_EQ(Value(page, "bitshard_requests_received_total", {R"(api="own")"}), 10);
    EXPECT_EQ(Value(page, "bitshard_requests_received_total", {R"(api="vllm")"}), 1);
    EXPECT_EQ(Value(page, "bitshard_requests_total", {R"(finished_reason="stop")"}), 2);
    EXPECT_EQ(Value(page, "bitshard_requests_total", {R"(grpc_code="DATA_LOSS")"}), 1)
        << "an unusual end";
    EXPECT_EQ(Value(page, "bitshard_admission_rejections_total", {R"(reason="bad_request")"}), 3);
    EXPECT_EQ(Value(page, "bitshard_admission_rejections_total", {R"(reason="queue_full")"}), 1);
    EXPECT_EQ(Value(page, "bitshard_requests_validating"), 1) << "11 less 2 less 8";
    EXPECT_EQ(Value(page, "bitshard_requests_running"), 1);
    EXPECT_EQ(Value(page, "bitshard_requests_waiting"), 2);
    EXPECT_EQ(Value(page, "bitshard_requests_waiting_by_reason", {R"(reason="deferred")"}), 1);
    EXPECT_EQ(Value(page, "bitshard_requests_waiting_by_reason", {R"(reason="capacity")"}), 1);
    EXPECT_EQ(Value(page, "bitshard_requests_waiting_by_reason", {R"(reason="no_group")"}), 0);
  };
  check();
  metrics.ClearSources();
  check();  // the last numbers stay: counters never fall
}

TEST(CoordinatorMetrics, CallsAreCountedByMethodAndStrangersTogether) {
  CoordinatorMetrics metrics(Info());
  metrics.CallStarted("/bitshard.v1.Inference/Generate");
  metrics.CallEnded("/bitshard.v1.Inference/Generate", absl::StatusCode::kCancelled,
                    absl::Milliseconds(30));
  for (const char* method : {"/a.B/C", "/a.B/D", ""}) metrics.CallStarted(method);
  metrics.CallEnded("/a.B/C", absl::StatusCode::kUnimplemented, absl::ZeroDuration());
  const std::string page = metrics.Page();
  EXPECT_EQ(Value(page, "bitshard_grpc_server_started_total", {R"(grpc_method="Generate")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_grpc_server_handled_total",
                  {R"(grpc_method="Generate")", R"(grpc_code="CANCELLED")"}),
            1);
  EXPECT_NEAR(
      Value(page, "bitshard_grpc_server_handling_seconds_sum", {R"(grpc_method="Generate")"}), 0.03,
      1e-9);
  EXPECT_EQ(Value(page, "bitshard_grpc_server_started_total", {R"(grpc_method="other")"}), 3);
  EXPECT_EQ(Value(page, "bitshard_grpc_server_handled_total",
                  {R"(grpc_method="other")", R"(grpc_code="UNIMPLEMENTED")"}),
            1);
  EXPECT_EQ(page.find("a.B"), std::string::npos) << "a caller's words as a label";
}

TEST(CoordinatorMetrics, GaugesComeFromTheSources) {
  CoordinatorMetrics metrics(Info());
  metrics.SetSources(
      [] {
        EngineStats stats;
        stats.running = 3;
        stats.blocks_total = 8;
        stats.blocks_used = 2;
        stats.blocks_cached = 4;
        stats.prefix_query_tokens = 100;
        stats.prefix_hit_tokens = 60;
        stats.prefix_evicted_blocks = 7;
        stats.predicted_wait = absl::Milliseconds(1500);
        stats.oldest_waiting = absl::Now() - absl::Seconds(5);
        return stats;
      },
      [] {
        GroupSnapshot group;
        group.state = GroupSnapshot::State::kReady;
        group.epoch = 5;
        group.ranks.resize(2);
        group.ranks[0].present = group.ranks[1].present = true;
        group.ranks[0].phase = Member::Phase::kLoading;
        group.ranks[0].done_bytes = 1;
        group.ranks[0].total_bytes = 4;
        group.ranks[1].phase = Member::Phase::kReady;
        group.ranks[1].weight_bytes = 1000;
        group.ranks[0].kernels.emplace_back().set_kernel("k");
        group.ranks[0].deterministic = false;
        group.ranks[1].memory.set_resident_bytes(5000);
        group.ranks[1].heartbeat_age = absl::Milliseconds(250);
        return group;
      });
  const std::string page = metrics.Page();
  EXPECT_EQ(Value(page, "bitshard_requests_running"), 3);
  EXPECT_EQ(Value(page, "bitshard_kv_cache_usage_ratio"), 0.25);
  EXPECT_EQ(Value(page, "bitshard_kv_blocks", {R"(state="cached")"}), 4);
  EXPECT_EQ(Value(page, "bitshard_prefix_cache_queries_total"), 100);
  EXPECT_EQ(Value(page, "bitshard_prefix_cache_hits_total"), 60);
  EXPECT_EQ(Value(page, "bitshard_prefix_cache_evicted_blocks_total"), 7);
  EXPECT_EQ(Value(page, "bitshard_predicted_wait_seconds"), 1.5);
  EXPECT_GE(Value(page, "bitshard_oldest_waiting_seconds"), 5);
  EXPECT_EQ(Value(page, "bitshard_cache_config_info", {R"(num_blocks="8")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_model_info", {R"(numerics="nondeterministic")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_worker_up", {R"(rank="0")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_worker_up", {R"(rank="1")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_worker_load_progress_ratio", {R"(rank="0")"}), 0.25);
  EXPECT_EQ(Value(page, "bitshard_worker_load_progress_ratio", {R"(rank="1")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_worker_heartbeat_age_seconds", {R"(rank="1")"}), 0.25);
  EXPECT_EQ(Value(page, "bitshard_worker_memory_bytes", {R"(rank="1")", R"(kind="resident")"}),
            5000);
  EXPECT_EQ(Value(page, "bitshard_group_epoch"), 5);
}

TEST(CoordinatorMetrics, EverythingElseThatHappensHasItsSeries) {
  CoordinatorMetrics metrics(Info());
  metrics.StepEnded({.kind = StepKind::kMixed,
                     .tokens = 40,
                     .rows = 3,
                     .execution = absl::Milliseconds(7),
                     .round_trip = absl::Milliseconds(9)});
  metrics.SchedulerTime(SchedulerOp::kPlan, absl::Microseconds(30));
  metrics.Preempted(2);
  metrics.NonFinite();
  metrics.GroupLost(LossCause::kTimeout);
  metrics.GroupRebuilt(LossCause::kTimeout, 4);
  metrics.EndedWithoutToken();
  metrics.RefusalSent(absl::Microseconds(40));
  metrics.TokenizerTime(TokenizerOp::kRequest, absl::Microseconds(50));
  metrics.GrammarCompiled(GrammarKind::kRegex, absl::Milliseconds(2), /*ok=*/false);
  metrics.GrammarCacheHit();
  metrics.StreamBacklog(3);
  metrics.StreamBacklog(-1);
  metrics.Coalesced();
  metrics.SlowReaderEnded();
  const std::string page = metrics.Page();
  const std::string mixed = R"(kind="mixed")";
  EXPECT_NEAR(Value(page, "bitshard_step_seconds_sum", {mixed}), 0.007, 1e-9);
  EXPECT_NEAR(Value(page, "bitshard_step_round_trip_seconds_sum", {mixed}), 0.009, 1e-9);
  EXPECT_EQ(Value(page, "bitshard_step_tokens_sum", {mixed}), 40);
  EXPECT_EQ(Value(page, "bitshard_step_rows_sum", {mixed}), 3);
  EXPECT_EQ(Value(page, "bitshard_scheduler_seconds_count", {R"(op="plan")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_preemptions_total", {R"(mode="recompute")"}), 2);
  EXPECT_EQ(Value(page, "bitshard_non_finite_requests_total"), 1);
  EXPECT_EQ(Value(page, "bitshard_group_losses_total", {R"(cause="timeout")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_group_rebuilds_total", {R"(cause="timeout")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_requests_resumed_total", {R"(cause="timeout")"}), 4);
  EXPECT_EQ(Value(page, "bitshard_ended_without_token_total"), 1);
  EXPECT_EQ(Value(page, "bitshard_rejection_seconds_bucket", {R"(le="5e-05")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_tokenizer_seconds_count", {R"(op="request")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_grammar_compile_seconds_count", {R"(kind="regex")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_grammar_compile_errors_total", {R"(kind="regex")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_grammar_cache_hits_total"), 1);
  EXPECT_EQ(Value(page, "bitshard_stream_backlog_chunks"), 2);
  EXPECT_EQ(Value(page, "bitshard_stream_coalesced_total"), 1);
  EXPECT_EQ(Value(page, "bitshard_slow_reader_aborts_total"), 1);
}

TEST(CoordinatorMetrics, TheTableHasAHelpAndAMeasureForEverything) {
  for (const MetricDef& def : CoordinatorMetricTable(Info())) {
    EXPECT_FALSE(def.help.empty() || def.when.empty()) << def.name;
    EXPECT_EQ(def.help.find('|') + def.when.find('|'), 2 * std::string::npos) << def.name;
    EXPECT_EQ(def.type == MetricType::kHistogram, !def.buckets.bounds.empty()) << def.name;
    const bool total = absl::EndsWith(def.name, "_total");
    EXPECT_EQ(def.type == MetricType::kCounter, total) << def.name;
  }
}

// GET /metrics of a local port.
std::string Scrape(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
      answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

TEST(CoordinatorMetrics, AScrapeHasCountersAndGauges) {
  CoordinatorMetrics metrics(Info());
  ASSERT_TRUE(metrics.Serve("127.0.0.1", 0).ok());
  const std::string page = Scrape(metrics.port());
  EXPECT_EQ(Value(page, "bitshard_requests_received_total", {R"(api="own")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_worker_up", {R"(rank="0")"}), 0);
  EXPECT_GT(Value(page, "process_open_fds"), 0);
}

TEST(CoordinatorMetrics, ServesOnAnyPortAndNamesATakenOne) {
  CoordinatorMetrics metrics(Info()), second(Info());
  ASSERT_TRUE(metrics.Serve("127.0.0.1", 0).ok());
  EXPECT_GT(metrics.port(), 0);
  const absl::Status status = second.Serve("127.0.0.1", metrics.port());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--metrics-port"));
}

}  // namespace
}  // namespace bitshard
