#include "coordinator/metrics.h"

#include <array>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace bitshard {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;
using Labels = std::map<std::string, std::string>;

// Supersets of the boundaries that vLLM's dashboards know, finer where small models live. Seconds.
const Buckets kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                             1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kInterToken = {.001, .002, .004, .006, .008, .01, .015, .02, .025, .03,
                             .04,  .05,  .075, .1,   .15,  .2,  .3,   .4,  .5,   .75,
                             1,    2.5,  5,    7.5,  10,   20,  40,   80};
const Buckets kLatency = {.01, .02, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,   2.5,  5,
                          10,  15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kStepTokens = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

// 1-2-5 x 10^k up to the context.
Buckets TokenBuckets(uint32_t context_tokens) {
  Buckets buckets;
  for (double decade = 1; decade <= 1e7; decade *= 10) {
    for (const double step : {1., 2., 5.}) {
      if (!buckets.empty() && buckets.back() >= context_tokens) return buckets;
      buckets.push_back(step * decade);
    }
  }
  return buckets;
}

const std::pair<EndReason, absl::StatusCode> kUsualEnds[] = {
    {EndReason::kStop, absl::StatusCode::kOk},
    {EndReason::kLength, absl::StatusCode::kOk},
    {EndReason::kCancelled, absl::StatusCode::kCancelled},
    {EndReason::kDeadline, absl::StatusCode::kDeadlineExceeded},
    {EndReason::kError, absl::StatusCode::kInternal},
    {EndReason::kWorkerLost, absl::StatusCode::kUnavailable},
    {EndReason::kShutdown, absl::StatusCode::kUnavailable},
};

std::string Text(absl::string_view text) { return std::string(text); }

// One family of values that are known only when they are asked for.
class FamilyBuilder {
 public:
  FamilyBuilder(std::string name, std::string help, prometheus::MetricType type,
                const Labels& common)
      : common_(common) {
    family_.name = std::move(name);
    family_.help = std::move(help);
    family_.type = type;
  }
  FamilyBuilder& Add(double value, const Labels& labels = {}) {
    prometheus::ClientMetric metric;
    for (const Labels* some : {&common_, &labels}) {
      for (const auto& [name, text] : *some) metric.label.push_back({name, text});
    }
    (family_.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) =
        value;
    family_.metric.push_back(std::move(metric));
    return *this;
  }
  prometheus::MetricFamily Build() { return std::move(family_); }

 private:
  const Labels& common_;
  prometheus::MetricFamily family_;
};

// The standard process_ series, which prometheus-cpp leaves to us.
void AddProcess(std::vector<prometheus::MetricFamily>& families) {
  static const Labels kNone;
  const auto add = [&](const char* name, const char* help, double value,
                       prometheus::MetricType type = prometheus::MetricType::Gauge) {
    families.push_back(FamilyBuilder(name, help, type, kNone).Add(value).Build());
  };
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + t.tv_usec * 1e-6;
  };
  add("process_cpu_seconds_total", "CPU time of this process.",
      seconds(usage.ru_utime) + seconds(usage.ru_stime), prometheus::MetricType::Counter);
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  if (statm >> pages >> resident) {
    const double page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
    add("process_virtual_memory_bytes", "Address space.", pages * page_bytes);
    add("process_resident_memory_bytes", "Memory in use.", resident * page_bytes);
  }
  std::error_code error;
  double open = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++open;
  }
  add("process_open_fds", "Open file descriptors.", open);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add("process_max_fds", "File descriptors that may be open.",
        static_cast<double>(limit.rlim_cur));
  }
  // Field 22 of stat, in ticks since boot; the name in field 2 may hold blanks, so count from its
  // closing bracket.
  std::ifstream stat_file("/proc/self/stat"), boot_file("/proc/stat");
  const std::string stat((std::istreambuf_iterator<char>(stat_file)),
                         std::istreambuf_iterator<char>());
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
  }
  std::string key;
  double boot = 0;
  while (boot_file >> key && !(key == "btime" && boot_file >> boot)) {
  }
  if (boot > 0 && !field.empty()) {
    add("process_start_time_seconds", "When this process started, since the epoch.",
        boot + std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK)));
  }
}

}  // namespace

struct CoordinatorMetrics::Impl final : prometheus::Collectable {
  explicit Impl(const Info& about)
      : info(about),
        common{{"model_name", about.model_name}, {"engine", about.engine}},
        token_buckets(TokenBuckets(about.context_tokens)) {}

  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const Labels& labels = {}) {
    return prometheus::BuildCounter()
        .Name("bitshard_" + name)
        .Help(help)
        .Labels(common)
        .Register(*registry)
        .Add(labels);
  }
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const Buckets& buckets, const Labels& labels = {}) {
    return prometheus::BuildHistogram()
        .Name("bitshard_" + name)
        .Help(help)
        .Labels(common)
        .Register(*registry)
        .Add(labels, buckets);
  }
  prometheus::Counter& Ends(EndReason reason, absl::StatusCode code) {
    return Counter(
        "requests_total", "Accepted requests that ended: each exactly once.",
        {{"finished_reason", Text(Name(reason))}, {"grpc_code", absl::StatusCodeToString(code)}});
  }

  std::vector<prometheus::MetricFamily> Collect() const override;

  const Info info;
  const Labels common;
  const Buckets token_buckets;
  // Shared with the exposer, which holds it weakly.
  const std::shared_ptr<prometheus::Registry> registry =
      std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Merge);
  std::shared_ptr<prometheus::Collectable>
      gauges;  // this object, for the exposer, which holds it weakly
  std::unique_ptr<prometheus::Exposer> exposer;
  int port = 0;

  mutable absl::Mutex mu;  // held while the sources run, so that ClearSources waits for a scrape
  std::function<EngineStats()> engine ABSL_GUARDED_BY(mu);
  std::function<GroupSnapshot()> group ABSL_GUARDED_BY(mu);

  prometheus::Counter& received = Counter(
      "requests_received_total", "Requests that came in, accepted or not.", {{"api", "own"}});
  prometheus::Counter& prompt_tokens =
      Counter("prompt_tokens_total", "Prompt tokens of requests that got a first token.");
  prometheus::Counter& cached_tokens =
      Counter("prompt_tokens_cached_total", "Of these, tokens out of the prefix cache.");
  prometheus::Counter& generated_tokens = Counter("generation_tokens_total", "Tokens generated.");
  prometheus::Counter& preemptions =
      Counter("preemptions_total", "Running requests that gave their blocks back.",
              {{"mode", "recompute"}});
  prometheus::Counter& no_token =
      Counter("ended_without_token_total", "Accepted requests that ended before a first token.");
  prometheus::Histogram& first_token =
      Histogram("time_to_first_token_seconds", "From receipt to the first token.", kFirstToken);
  prometheus::Histogram& inter_token =
      Histogram("inter_token_latency_seconds", "Between emitted steps of a request.", kInterToken);
  prometheus::Histogram& per_output_token = Histogram(
      "request_time_per_output_token_seconds", "Mean time per token after the first.", kInterToken);
  prometheus::Histogram& e2e =
      Histogram("e2e_request_latency_seconds", "From receipt to the end.", kLatency);
  prometheus::Histogram& queue_time =
      Histogram("request_queue_time_seconds", "From receipt to the first step.", kLatency);
  prometheus::Histogram& prefill_time =
      Histogram("request_prefill_time_seconds", "From there to the first token.", kLatency);
  prometheus::Histogram& decode_time =
      Histogram("request_decode_time_seconds", "From there to the end.", kLatency);
  prometheus::Histogram& inference_time =
      Histogram("request_inference_time_seconds", "From the first step to the end.", kLatency);
  prometheus::Histogram& request_prompt =
      Histogram("request_prompt_tokens", "Prompt tokens of a request.", token_buckets);
  prometheus::Histogram& request_generated =
      Histogram("request_generation_tokens", "Tokens generated for a request.", token_buckets);
  prometheus::Histogram& request_max_tokens =
      Histogram("request_params_max_tokens", "max_tokens of a request.", token_buckets);
  prometheus::Histogram& scheduler = Histogram(
      "scheduler_seconds", "Choosing and writing one plan.", kInterToken, {{"op", "plan"}});
  std::map<RejectReason, prometheus::Counter*> rejections;
  std::map<StepKind, prometheus::Histogram*> step_seconds, step_tokens;
};

std::vector<prometheus::MetricFamily> CoordinatorMetrics::Impl::Collect() const {
  EngineStats stats;
  GroupSnapshot snapshot;
  {
    absl::MutexLock lock(&mu);
    if (engine) stats = engine();
    if (group) snapshot = group();
  }
  std::vector<prometheus::MetricFamily> families;
  const auto gauge = [&](const char* name, const char* help) {
    return FamilyBuilder(absl::StrCat("bitshard_", name), help, prometheus::MetricType::Gauge,
                         common);
  };
  const auto add = [&](FamilyBuilder& builder) { families.push_back(builder.Build()); };
  add(gauge("requests_running", "Requests in steps.").Add(stats.running));
  add(gauge("requests_waiting", "Requests in the queue.").Add(stats.waiting));
  add(gauge("waiting_tokens", "Prompt tokens in the queue.")
          .Add(static_cast<double>(stats.waiting_tokens)));
  const double oldest =
      stats.oldest_waiting == absl::InfiniteFuture()
          ? 0
          : std::max(0., absl::ToDoubleSeconds(absl::Now() - stats.oldest_waiting));
  add(gauge("oldest_waiting_seconds", "How long the longest waiting request has waited.")
          .Add(oldest));
  add(gauge("kv_blocks", "KV blocks by state; the sum is constant.")
          .Add(stats.blocks_free, {{"state", "free"}})
          .Add(stats.blocks_used, {{"state", "used"}})
          .Add(0, {{"state", "cached"}})
          .Add(stats.blocks_quarantined, {{"state", "quarantined"}}));
  add(gauge("kv_cache_usage_ratio", "Used KV blocks of all, 0 to 1.")
          .Add(stats.blocks_total == 0
                   ? 0
                   : static_cast<double>(stats.blocks_used) / stats.blocks_total));
  add(gauge("cache_config_info", "Constant 1.")
          .Add(1, {{"block_size", absl::StrCat(info.block_tokens)},
                   {"num_blocks", absl::StrCat(stats.blocks_total)},
                   {"cache_dtype", info.kv_cache_type}}));
  FamilyBuilder state = gauge("group_state", "1 for the state that the group is in.");
  for (const auto& [name, value] : {std::pair("forming", GroupSnapshot::State::kForming),
                                    std::pair("ready", GroupSnapshot::State::kReady),
                                    std::pair("lost", GroupSnapshot::State::kLost)}) {
    state.Add(snapshot.state == value ? 1 : 0, {{"state", name}});
  }
  add(state);
  add(gauge("group_term", "Term of this coordinator's hold on the workers.")
          .Add(static_cast<double>(snapshot.term)));
  add(gauge("group_epoch", "Epoch of the communicator.").Add(static_cast<double>(snapshot.epoch)));
  FamilyBuilder up = gauge("worker_up", "1 while the rank takes part in a ready group.");
  FamilyBuilder age = gauge("worker_heartbeat_age_seconds", "Since the rank was last heard.");
  for (uint32_t rank = 0; rank < info.world; ++rank) {
    const Labels label = {{"rank", absl::StrCat(rank)}};
    const RankSnapshot* seen = rank < snapshot.ranks.size() ? &snapshot.ranks[rank] : nullptr;
    const bool present = seen != nullptr && seen->present;
    up.Add(present && seen->phase == Member::Phase::kReady ? 1 : 0, label);
    age.Add(present ? absl::ToDoubleSeconds(seen->heartbeat_age) : 0, label);
  }
  add(up);
  add(age);
  add(gauge("build_info", "Constant 1.").Add(1, {{"version", info.version}, {"backend", "cpu"}}));
  add(gauge("model_info", "Constant 1.")
          .Add(1, {{"family", info.family},
                   {"weight_formats", info.weight_formats},
                   {"kv_dtype", info.kv_cache_type},
                   {"activations", info.activations},
                   {"tp", absl::StrCat(info.world)},
                   {"max_model_len", absl::StrCat(info.context_tokens)},
                   {"fingerprint", info.fingerprint}}));
  AddProcess(families);
  return families;
}

CoordinatorMetrics::CoordinatorMetrics(const Info& info) : impl_(std::make_unique<Impl>(info)) {
  // The exposer wants to see an owner alive: one of its own, for impl_ cannot own itself.
  impl_->gauges = std::shared_ptr<prometheus::Collectable>(std::make_shared<char>(), impl_.get());
  for (const RejectReason reason : kAllRejectReasons) {
    impl_->rejections[reason] =
        &impl_->Counter("admission_rejections_total", "Requests that were not accepted.",
                        {{"reason", Text(Name(reason))}});
  }
  for (const auto& [reason, code] : kUsualEnds) impl_->Ends(reason, code);
  for (const StepKind kind : kAllStepKinds) {
    const Labels label = {{"kind", Text(Name(kind))}};
    impl_->step_seconds[kind] =
        &impl_->Histogram("step_seconds", "Execution of a step on rank 0.", kInterToken, label);
    impl_->step_tokens[kind] =
        &impl_->Histogram("step_tokens", "Positions computed in a step.", kStepTokens, label);
  }
}

CoordinatorMetrics::~CoordinatorMetrics() { impl_->exposer.reset(); }

void CoordinatorMetrics::SetSources(std::function<EngineStats()> engine,
                                    std::function<GroupSnapshot()> group) {
  absl::MutexLock lock(&impl_->mu);
  impl_->engine = std::move(engine);
  impl_->group = std::move(group);
}

void CoordinatorMetrics::ClearSources() { SetSources(nullptr, nullptr); }

absl::Status CoordinatorMetrics::Serve(const std::string& host, int port) {
  const std::string address = absl::StrCat(host, ":", port);
  try {
    impl_->exposer = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/2);
    impl_->exposer->RegisterCollectable(impl_->registry);
    impl_->exposer->RegisterCollectable(impl_->gauges);
    impl_->port = impl_->exposer->GetListeningPorts().at(0);
  } catch (const std::exception& error) {
    impl_->exposer.reset();
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address,
                                               " (--metrics-port): ", error.what(),
                                               "; is the port taken? 0 picks one, -1 is none"));
  }
  return absl::OkStatus();
}

int CoordinatorMetrics::port() const { return impl_->port; }

std::string CoordinatorMetrics::Page() const {
  std::vector<prometheus::MetricFamily> families = impl_->registry->Collect();
  for (prometheus::MetricFamily& family : impl_->Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

void CoordinatorMetrics::Received() { impl_->received.Increment(); }
void CoordinatorMetrics::Rejected(RejectReason reason) {
  impl_->rejections.at(reason)->Increment();
}
void CoordinatorMetrics::FirstToken(absl::Duration since_received) {
  impl_->first_token.Observe(absl::ToDoubleSeconds(since_received));
}
void CoordinatorMetrics::InterToken(absl::Duration gap) {
  impl_->inter_token.Observe(absl::ToDoubleSeconds(gap));
}
void CoordinatorMetrics::PromptTokens(uint32_t tokens, uint32_t cached_tokens) {
  impl_->prompt_tokens.Increment(tokens);
  impl_->cached_tokens.Increment(cached_tokens);
}
void CoordinatorMetrics::GeneratedTokens(uint32_t tokens) {
  impl_->generated_tokens.Increment(tokens);
}
void CoordinatorMetrics::Preempted(uint32_t requests) { impl_->preemptions.Increment(requests); }
void CoordinatorMetrics::ScheduleTime(absl::Duration time) {
  impl_->scheduler.Observe(absl::ToDoubleSeconds(time));
}

void CoordinatorMetrics::Ended(const RequestSummary& summary) {
  impl_->Ends(summary.reason, summary.code).Increment();
  if (summary.completion_tokens == 0) impl_->no_token.Increment();
  const double queue = absl::ToDoubleSeconds(summary.queue),
               prefill = absl::ToDoubleSeconds(summary.prefill),
               decode = absl::ToDoubleSeconds(summary.decode);
  impl_->e2e.Observe(queue + prefill + decode);
  impl_->queue_time.Observe(queue);
  impl_->prefill_time.Observe(prefill);
  impl_->decode_time.Observe(decode);
  impl_->inference_time.Observe(prefill + decode);
  if (summary.completion_tokens > 1)
    impl_->per_output_token.Observe(decode / (summary.completion_tokens - 1));
  impl_->request_prompt.Observe(summary.prompt_tokens);
  impl_->request_generated.Observe(summary.completion_tokens);
  impl_->request_max_tokens.Observe(summary.max_tokens);
}

void CoordinatorMetrics::StepEnded(const StepSummary& summary) {
  impl_->step_seconds.at(summary.kind)->Observe(absl::ToDoubleSeconds(summary.execution));
  if (summary.tokens > 0) impl_->step_tokens.at(summary.kind)->Observe(summary.tokens);
}

}  // namespace bitshard
