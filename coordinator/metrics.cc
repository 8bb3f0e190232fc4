#include "coordinator/metrics.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace bitshard {
namespace {

template <typename Enum>
size_t At(Enum value) {
  return static_cast<size_t>(value);
}

// Wall clocks are set back now and then.
double Seconds(absl::Duration time) { return std::max(0., absl::ToDoubleSeconds(time)); }

std::string Text(absl::string_view text) { return std::string(text); }

// The series of every value of an enumeration that is the metric's only label.
template <typename Series, size_t kCount>
using Each = std::array<Series*, kCount>;

template <typename Enum, size_t kCount>
Each<MetricHistogram, kCount> EachHistogram(MetricPage& page, absl::string_view name,
                                            const Enum (&all)[kCount]) {
  Each<MetricHistogram, kCount> out;
  for (const Enum one : all) out[At(one)] = page.Histogram(name, {Text(Name(one))});
  return out;
}
template <typename Enum, size_t kCount>
Each<MetricValue, kCount> EachValue(MetricPage& page, absl::string_view name,
                                    const Enum (&all)[kCount]) {
  Each<MetricValue, kCount> out;
  for (const Enum one : all) out[At(one)] = page.Value(name, {Text(Name(one))});
  return out;
}

// The linear kernel that runs most nodes.
std::string MainKernel(const std::vector<internal::KernelChoice>& kernels) {
  const internal::KernelChoice* main = nullptr;
  for (const internal::KernelChoice& choice : kernels) {
    if (choice.format().empty() || choice.op() == "embed") continue;
    if (main == nullptr || choice.nodes() > main->nodes()) main = &choice;
  }
  return main == nullptr ? "none" : main->kernel();
}

// By rank 0, as MainKernel.
std::string NumericsOf(const GroupSnapshot& group) {
  if (group.ranks.empty() || group.ranks[0].kernels.empty()) return "none";
  return group.ranks[0].deterministic ? "deterministic" : "nondeterministic";
}

struct CallSeries {
  MetricValue* started;
  std::array<MetricValue*, RequestLedger::kCodes> handled;
  MetricHistogram* seconds;
};

}  // namespace

struct CoordinatorMetrics::Impl {
  explicit Impl(const Info& about)
      : info(about),
        page(CoordinatorMetricTable(about),
             {{"model_name", about.model_name}, {"engine", about.engine}}) {
    for (const CallMethod& one : CountedMethods()) {
      CallSeries series;
      series.started = page.Value("grpc_server_started_total", {one.service, one.method});
      series.seconds = page.Histogram("grpc_server_handling_seconds", {one.service, one.method});
      for (size_t code = 0; code < RequestLedger::kCodes; ++code) {
        series.handled[code] = page.Value(
            "grpc_server_handled_total",
            {one.service, one.method,
             absl::StatusCodeToString(static_cast<absl::StatusCode>(static_cast<int>(code)))});
      }
      calls.emplace(absl::StrCat("/", one.service, "/", one.method), series);
    }
    other_calls = calls.at("/other/other");
  }

  const CallSeries& CallsOf(absl::string_view method) const {
    const auto at = calls.find(method);
    return at == calls.end() ? other_calls : at->second;
  }

  void Collect();
  void CollectRequests(const EngineStats& stats);
  void CollectEngine(const EngineStats& stats);
  void CollectGroup(const GroupSnapshot& group);

  const Info info;
  MetricPage page;
  absl::flat_hash_map<std::string, CallSeries> calls;
  CallSeries other_calls;

  absl::Mutex mu;
  std::function<EngineStats()> engine ABSL_GUARDED_BY(mu);
  std::function<GroupSnapshot()> group ABSL_GUARDED_BY(mu);

  // What the frontend counts of requests; the rest of the ledger is the engine's.
  std::array<std::atomic<uint64_t>, std::size(kAllFaces)> received = {};
  std::array<std::atomic<uint64_t>, std::size(kAllRejectReasons)> refused = {};
  std::atomic<int64_t> backlog{0};

  // Of events that come often.
  MetricValue* const prompt_tokens = page.Value("prompt_tokens_total");
  MetricValue* const cached_tokens = page.Value("prompt_tokens_cached_total");
  MetricValue* const generated_tokens = page.Value("generation_tokens_total");
  MetricValue* const no_token = page.Value("ended_without_token_total");
  MetricValue* const coalesced = page.Value("stream_coalesced_total");
  MetricHistogram* const first_token = page.Histogram("time_to_first_token_seconds");
  MetricHistogram* const inter_token = page.Histogram("inter_token_latency_seconds");
  MetricHistogram* const per_token = page.Histogram("request_time_per_output_token_seconds");
  MetricHistogram* const e2e = page.Histogram("e2e_request_latency_seconds");
  MetricHistogram* const frontend = page.Histogram("request_frontend_time_seconds");
  MetricHistogram* const queue = page.Histogram("request_queue_time_seconds");
  MetricHistogram* const prefill = page.Histogram("request_prefill_time_seconds");
  MetricHistogram* const decode = page.Histogram("request_decode_time_seconds");
  MetricHistogram* const recompute = page.Histogram("request_recompute_time_seconds");
  MetricHistogram* const paused = page.Histogram("request_paused_time_seconds");
  MetricHistogram* const inference = page.Histogram("request_inference_time_seconds");
  MetricHistogram* const prompt_size = page.Histogram("request_prompt_tokens");
  MetricHistogram* const output_size = page.Histogram("request_generation_tokens");
  MetricHistogram* const choice_size = page.Histogram("request_max_num_generation_tokens");
  MetricHistogram* const max_tokens = page.Histogram("request_params_max_tokens");
  MetricHistogram* const computed = page.Histogram("request_prefill_kv_computed_tokens");
  MetricHistogram* const choices = page.Histogram("request_params_n");
  MetricHistogram* const preemptions = page.Histogram("request_num_preemptions");
  MetricHistogram* const rejection = page.Histogram("rejection_seconds");
  const Each<MetricHistogram, std::size(kAllStepKinds)>
      step_seconds = EachHistogram(page, "step_seconds", kAllStepKinds),
      step_round_trip = EachHistogram(page, "step_round_trip_seconds", kAllStepKinds),
      step_tokens = EachHistogram(page, "step_tokens", kAllStepKinds),
      step_rows = EachHistogram(page, "step_rows", kAllStepKinds);
  const Each<MetricHistogram, std::size(kAllSchedulerOps)> scheduler =
      EachHistogram(page, "scheduler_seconds", kAllSchedulerOps);
  const Each<MetricHistogram, std::size(kAllTokenizerOps)> tokenizer =
      EachHistogram(page, "tokenizer_seconds", kAllTokenizerOps);
  const Each<MetricHistogram, std::size(kAllGrammarKinds)> grammar =
      EachHistogram(page, "grammar_compile_seconds", kAllGrammarKinds);
  const Each<MetricValue, std::size(kAllGrammarKinds)> grammar_errors =
      EachValue(page, "grammar_compile_errors_total", kAllGrammarKinds);
};

void CoordinatorMetrics::Impl::Collect() {
  {
    absl::MutexLock lock(&mu);
    if (engine) {
      const EngineStats stats = engine();
      CollectRequests(stats);
      CollectEngine(stats);
    }
    CollectGroup(group ? group() : GroupSnapshot());
  }
  page.Value("stream_backlog_chunks")
      ->Set(static_cast<double>(std::max<int64_t>(0, backlog.load(std::memory_order_relaxed))));
  page.SetInfo("build_info", {info.version, "cpu"});
  SetProcessMetrics(page);
}

// The engine's snapshot comes first, then what the frontend has refused, then what has come in: a
// request that an earlier number counts is in the later ones too, so the rest is never negative.
void CoordinatorMetrics::Impl::CollectRequests(const EngineStats& stats) {
  uint64_t decided = stats.received;
  for (const RejectReason reason : kAllRejectReasons) {
    const uint64_t here = refused[At(reason)].load(std::memory_order_acquire);
    decided += here;
    page.Value("admission_rejections_total", {Text(Name(reason))})
        ->Set(static_cast<double>(stats.ledger.rejected[At(reason)] + here));
  }
  uint64_t all = 0;
  for (const Face face : kAllFaces) {
    const uint64_t here = received[At(face)].load(std::memory_order_acquire);
    all += here;
    page.Value("requests_received_total", {Text(Name(face))})->Set(static_cast<double>(here));
  }
  for (const EndReason reason : kAllEndReasons) {
    for (size_t code = 0; code < RequestLedger::kCodes; ++code) {
      const uint64_t ends = stats.ledger.ended[At(reason)][code];
      if (ends == 0) continue;  // the usual ones are there already
      page.Value("requests_total",
                 {Text(Name(reason)),
                  absl::StatusCodeToString(static_cast<absl::StatusCode>(static_cast<int>(code)))})
          ->Set(static_cast<double>(ends));
    }
  }
  page.Value("requests_validating")->Set(static_cast<double>(all - std::min(all, decided)));
  page.Value("requests_running")->Set(stats.running);
  page.Value("requests_waiting")->Set(stats.waiting);
  const bool ready = stats.group == EngineStats::GroupState::kReady;
  const uint32_t deferred = ready ? std::min(stats.waiting_deferred, stats.waiting) : 0;
  page.Value("requests_waiting_by_reason", {"no_group"})->Set(ready ? 0 : stats.waiting);
  page.Value("requests_waiting_by_reason", {"deferred"})->Set(deferred);
  page.Value("requests_waiting_by_reason", {"capacity"})->Set(ready ? stats.waiting - deferred : 0);
  page.Value("waiting_tokens")->Set(static_cast<double>(stats.waiting_tokens));
  page.Value("oldest_waiting_seconds")
      ->Set(stats.oldest_waiting == absl::InfiniteFuture()
                ? 0
                : Seconds(absl::Now() - stats.oldest_waiting));
  page.Value("predicted_wait_seconds")->Set(Seconds(stats.predicted_wait));
}

void CoordinatorMetrics::Impl::CollectEngine(const EngineStats& stats) {
  const auto count = [this](const char* name, uint64_t value) {
    page.Value(name)->Set(static_cast<double>(value));
  };
  count("stale_outputs_total", stats.stale_outputs);
  count("prefix_cache_queries_total", stats.prefix_query_tokens);
  count("prefix_cache_hits_total", stats.prefix_hit_tokens);
  count("prefix_cache_evicted_blocks_total", stats.prefix_evicted_blocks);
  page.Value("kv_blocks", {"free"})->Set(stats.blocks_free);
  page.Value("kv_blocks", {"used"})->Set(stats.blocks_used);
  page.Value("kv_blocks", {"cached"})->Set(stats.blocks_cached);
  page.Value("kv_blocks", {"quarantined"})->Set(stats.blocks_quarantined);
  page.Value("kv_cache_usage_ratio")
      ->Set(stats.blocks_total == 0 ? 0
                                    : static_cast<double>(stats.blocks_used) / stats.blocks_total);
  page.SetInfo("cache_config_info", {absl::StrCat(info.block_tokens),
                                     absl::StrCat(stats.blocks_total), info.kv_cache_type});
}

void CoordinatorMetrics::Impl::CollectGroup(const GroupSnapshot& snapshot) {
  using State = GroupSnapshot::State;
  for (const auto& [name, value] :
       {std::pair("forming", State::kForming), std::pair("ready", State::kReady),
        std::pair("lost", State::kLost)}) {
    page.Value("group_state", {name})->Set(snapshot.state == value ? 1 : 0);
  }
  page.Value("group_term")->Set(static_cast<double>(snapshot.term));
  page.Value("group_epoch")->Set(static_cast<double>(snapshot.epoch));
  page.Value("group_spares")->Set(static_cast<double>(snapshot.spares.size()));
  uint64_t foremost = 0;
  for (const RankSnapshot& rank : snapshot.ranks) foremost = std::max(foremost, rank.step);
  for (uint32_t i = 0; i < info.world; ++i) {
    const std::string label = absl::StrCat(i);
    const RankSnapshot none;
    const RankSnapshot& rank =
        i < snapshot.ranks.size() && snapshot.ranks[i].present ? snapshot.ranks[i] : none;
    const bool up = rank.present && rank.phase == Member::Phase::kReady;
    page.Value("worker_up", {label})->Set(up ? 1 : 0);
    page.Value("worker_heartbeat_age_seconds", {label})
        ->Set(rank.present ? Seconds(rank.heartbeat_age) : 0);
    page.Value("worker_step_lag", {label})->Set(up ? static_cast<double>(foremost - rank.step) : 0);
    const double progress = rank.total_bytes == 0 ? 0
                                                  : static_cast<double>(rank.done_bytes) /
                                                        static_cast<double>(rank.total_bytes);
    page.Value("worker_load_progress_ratio", {label})->Set(rank.weight_bytes > 0 ? 1 : progress);
    const auto memory = [&](const char* kind, uint64_t bytes) {
      page.Value("worker_memory_bytes", {label, kind})->Set(static_cast<double>(bytes));
    };
    memory("weights", rank.weight_bytes);
    memory("kv_cache", rank.memory.kv_cache_bytes());
    memory("workspace", rank.memory.workspace_bytes());
    memory("resident", rank.memory.resident_bytes());
    memory("peak_resident", rank.memory.peak_resident_bytes());
  }
  page.SetInfo("model_info",
               {info.family, info.weight_formats,
                snapshot.ranks.empty() ? "none" : MainKernel(snapshot.ranks[0].kernels),
                info.kv_cache_type, info.activations, NumericsOf(snapshot),
                absl::StrCat(info.world), absl::StrCat(info.context_tokens), info.fingerprint});
}

CoordinatorMetrics::CoordinatorMetrics(const Info& info) : impl_(std::make_unique<Impl>(info)) {
  impl_->page.SetInfo("cache_config_info",
                      {absl::StrCat(info.block_tokens), "0", info.kv_cache_type});
  impl_->page.SetCollector([impl = impl_.get()] { impl->Collect(); });
}

CoordinatorMetrics::~CoordinatorMetrics() { impl_->page.SetCollector(nullptr); }

void CoordinatorMetrics::SetSources(std::function<EngineStats()> engine,
                                    std::function<GroupSnapshot()> group) {
  absl::MutexLock lock(&impl_->mu);
  impl_->engine = std::move(engine);
  impl_->group = std::move(group);
}

void CoordinatorMetrics::ClearSources() { SetSources(nullptr, nullptr); }

absl::Status CoordinatorMetrics::Serve(const std::string& host, int port) {
  return impl_->page.Serve(host, port);
}
int CoordinatorMetrics::port() const { return impl_->page.port(); }
std::string CoordinatorMetrics::Page() const { return impl_->page.Text(); }

void CoordinatorMetrics::InterToken(absl::Duration gap) {
  impl_->inter_token->Observe(Seconds(gap));
}
void CoordinatorMetrics::PromptTokens(uint32_t tokens, uint32_t cached_tokens) {
  impl_->prompt_tokens->Add(tokens);
  impl_->cached_tokens->Add(cached_tokens);
}
void CoordinatorMetrics::GeneratedTokens(uint32_t tokens) { impl_->generated_tokens->Add(tokens); }
void CoordinatorMetrics::Preempted(uint32_t requests) {
  impl_->page.Value("preemptions_total", {"recompute"})->Add(requests);
}
void CoordinatorMetrics::NonFinite() { impl_->page.Value("non_finite_requests_total")->Add(); }

void CoordinatorMetrics::Ended(const RequestSummary& summary) {
  Impl& i = *impl_;
  i.e2e->Observe(Seconds(summary.e2e));
  i.frontend->Observe(Seconds(summary.frontend));
  i.queue->Observe(Seconds(summary.queue));
  i.prefill->Observe(Seconds(summary.prefill));
  i.decode->Observe(Seconds(summary.decode));
  i.recompute->Observe(Seconds(summary.recompute));
  i.paused->Observe(Seconds(summary.paused));
  i.inference->Observe(Seconds(summary.prefill + summary.decode + summary.recompute));
  if (summary.longest_choice > 1)
    i.per_token->Observe(Seconds(summary.after_first_token) / (summary.longest_choice - 1));
  i.prompt_size->Observe(summary.prompt_tokens);
  i.output_size->Observe(summary.completion_tokens);
  i.choice_size->Observe(summary.longest_choice);
  i.max_tokens->Observe(summary.max_tokens);
  i.computed->Observe(summary.prompt_tokens - summary.cached_tokens);
  i.choices->Observe(summary.choices);
  i.preemptions->Observe(summary.preemptions);
}

void CoordinatorMetrics::StepEnded(const StepSummary& summary) {
  const size_t kind = At(summary.kind);
  impl_->step_seconds[kind]->Observe(Seconds(summary.execution));
  impl_->step_round_trip[kind]->Observe(Seconds(summary.round_trip));
  impl_->step_tokens[kind]->Observe(summary.tokens);
  impl_->step_rows[kind]->Observe(summary.rows);
}

void CoordinatorMetrics::SchedulerTime(SchedulerOp op, absl::Duration time) {
  impl_->scheduler[At(op)]->Observe(Seconds(time));
}
void CoordinatorMetrics::GroupLost(LossCause cause) {
  impl_->page.Value("group_losses_total", {Text(Name(cause))})->Add();
}
void CoordinatorMetrics::GroupRebuilt(LossCause cause, uint32_t resumed) {
  impl_->page.Value("group_rebuilds_total", {Text(Name(cause))})->Add();
  impl_->page.Value("requests_resumed_total", {Text(Name(cause))})->Add(resumed);
}

void CoordinatorMetrics::Received(Face face) {
  impl_->received[At(face)].fetch_add(1, std::memory_order_acq_rel);
}
void CoordinatorMetrics::Refused(RejectReason reason) {
  impl_->refused[At(reason)].fetch_add(1, std::memory_order_acq_rel);
}
void CoordinatorMetrics::RefusalSent(absl::Duration since_received) {
  impl_->rejection->Observe(Seconds(since_received));
}
void CoordinatorMetrics::FirstToken(absl::Duration since_received) {
  impl_->first_token->Observe(Seconds(since_received));
}
void CoordinatorMetrics::EndedWithoutToken() { impl_->no_token->Add(); }
void CoordinatorMetrics::TokenizerTime(TokenizerOp op, absl::Duration time) {
  impl_->tokenizer[At(op)]->Observe(Seconds(time));
}
void CoordinatorMetrics::GrammarCompiled(GrammarKind kind, absl::Duration time, bool ok) {
  impl_->grammar[At(kind)]->Observe(Seconds(time));
  if (!ok) impl_->grammar_errors[At(kind)]->Add();
}
void CoordinatorMetrics::GrammarCacheHit() { impl_->page.Value("grammar_cache_hits_total")->Add(); }
void CoordinatorMetrics::StreamBacklog(int64_t change) {
  impl_->backlog.fetch_add(change, std::memory_order_relaxed);
}
void CoordinatorMetrics::Coalesced() { impl_->coalesced->Add(); }
void CoordinatorMetrics::SlowReaderEnded() { impl_->page.Value("slow_reader_aborts_total")->Add(); }
void CoordinatorMetrics::CallStarted(absl::string_view method) {
  impl_->CallsOf(method).started->Add();
}
void CoordinatorMetrics::CallEnded(absl::string_view method, absl::StatusCode code,
                                   absl::Duration time) {
  const CallSeries& series = impl_->CallsOf(method);
  series.handled[static_cast<size_t>(code) % RequestLedger::kCodes]->Add();
  series.seconds->Observe(Seconds(time));
}

}  // namespace bitshard
