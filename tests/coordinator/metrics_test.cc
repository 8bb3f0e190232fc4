#include "coordinator/metrics.h"

#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
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
  metrics.Received();
  metrics.FirstToken(absl::Milliseconds(30));
  metrics.InterToken(absl::Milliseconds(3));
  metrics.PromptTokens(7, 2);
  metrics.GeneratedTokens(1);
  metrics.GeneratedTokens(1);
  RequestSummary summary;
  summary.reason = EndReason::kLength;
  summary.code = absl::StatusCode::kOk;
  summary.prompt_tokens = 7;
  summary.completion_tokens = 2;
  summary.max_tokens = 2;
  summary.queue = absl::Milliseconds(10);
  summary.prefill = absl::Milliseconds(20);
  summary.decode = absl::Milliseconds(3);
  metrics.Ended(summary);
  const std::string page = metrics.Page();
  EXPECT_EQ(Value(page, "bitshard_requests_total", {R"(finished_reason="length")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_requests_received_total", {R"(api="own")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_prompt_tokens_total"), 7);
  EXPECT_EQ(Value(page, "bitshard_prompt_tokens_cached_total"), 2);
  EXPECT_EQ(Value(page, "bitshard_generation_tokens_total"), 2);
  EXPECT_NEAR(Value(page, "bitshard_e2e_request_latency_seconds_sum"), 0.033, 1e-9);
  EXPECT_NEAR(Value(page, "bitshard_request_time_per_output_token_seconds_sum"), 0.003, 1e-9);
  EXPECT_EQ(Value(page, "bitshard_ended_without_token_total"), 0);
}

TEST(CoordinatorMetrics, GaugesComeFromTheSources) {
  CoordinatorMetrics metrics(Info());
  metrics.SetSources(
      [] {
        EngineStats stats;
        stats.running = 3;
        stats.blocks_total = 8;
        stats.blocks_used = 2;
        return stats;
      },
      [] {
        GroupSnapshot group;
        group.state = GroupSnapshot::State::kReady;
        group.epoch = 5;
        group.ranks.resize(2);
        group.ranks[1].present = true;
        group.ranks[1].phase = Member::Phase::kReady;
        return group;
      });
  const std::string page = metrics.Page();
  EXPECT_EQ(Value(page, "bitshard_requests_running"), 3);
  EXPECT_EQ(Value(page, "bitshard_kv_cache_usage_ratio"), 0.25);
  EXPECT_EQ(Value(page, "bitshard_worker_up", {R"(rank="0")"}), 0);
  EXPECT_EQ(Value(page, "bitshard_worker_up", {R"(rank="1")"}), 1);
  EXPECT_EQ(Value(page, "bitshard_group_epoch"), 5);
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
  EXPECT_EQ(Value(page, "bitshard_requests_received_total"), 0);
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
