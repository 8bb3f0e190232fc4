#include "worker/metrics.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {
namespace {

constexpr auto kCounter = MetricType::kCounter;
constexpr auto kGauge = MetricType::kGauge;
constexpr auto kHistogram = MetricType::kHistogram;

const MetricBuckets kStep = {
    "STEP", {.001, .002, .004, .006, .008, .01, .015, .02, .025, .03, .04, .05, .075, .1,
             .15,  .2,   .3,   .4,   .5,   .75, 1,    2.5, 5,    7.5, 10,  20,  40,   80}};
const MetricBuckets kCollective = {
    "COLLECTIVE", {.000001, .000002, .000005, .00001, .00002, .00005, .0001, .0002, .0005, .001,
                   .002,    .005,    .01,     .02,    .05,    .1,     .2,    .5,    1,     5}};

enum Phase : size_t { kGemm, kAttention, kBetweenRanks, kDevice, kOther };
const char* const kPhases[] = {"gemm", "attention", "collective", "device", "other"};
const char* const kOps[] = {"allreduce", "allgather", "broadcast"};
const char* const kBringUpPhases[] = {"process_start", "kernel_probe", "registration", "read",
                                      "pack",          "load",         "bind",         "join",
                                      "self_test",     "kv_cache",     "total"};

template <size_t kCount>
std::vector<std::string> Texts(const char* const (&all)[kCount]) {
  return {all, all + kCount};
}

std::vector<std::string> ErrorNames() {
  std::vector<std::string> names;
  for (int code = 1; code <= 16; ++code)
    names.push_back(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  return names;
}

// Of an op of this kind ("linear+linear+linear"), as StepProfile names it.
Phase PhaseOf(const std::string& kind) {
  if (kind == "device") return kDevice;
  if (absl::StrContains(kind, "attention")) return kAttention;
  if (absl::StrContains(kind, "linear") || absl::StrContains(kind, "lm_head")) return kGemm;
  // On the CPU a watcher sees these.
  if (absl::StartsWith(kind, "device all_reduce")) return kBetweenRanks;
  return kOther;
}

}  // namespace

// Makes every series of the rank that has no open label.
struct WorkerMetrics::RankSeries {
  RankSeries(MetricPage& page, uint32_t number, const std::string& collective)
      : rank(absl::StrCat(number)) {
    for (MetricDef def : WorkerMetricTable()) {
      if (def.labels.empty() || def.labels[0].name != "rank") continue;
      def.labels[0].values = {rank};
      for (const std::vector<std::string>& labels : SeriesFromStart(def)) {
        if (def.type == kHistogram) {
          page.Histogram(def.name, labels);
        } else {
          page.Value(def.name, labels);
        }
      }
    }
    for (size_t i = 0; i < std::size(kPhases); ++i)
      phase_seconds[i] = page.Histogram("worker_step_seconds", {rank, kPhases[i]});
    for (size_t i = 0; i < std::size(kOps); ++i) {
      collective_seconds[i] = page.Histogram("collective_seconds", {rank, kOps[i], collective});
      collective_bytes[i] = page.Value("collective_bytes_total", {rank, kOps[i], collective});
    }
    sampling = page.Histogram("sampling_seconds", {rank});
    outputs = page.Value("worker_output_tokens_total", {rank});
    steps = page.Value("worker_steps_total", {rank});
    steps_ahead = page.Value("worker_steps_ahead_total", {rank});
    read_bytes = page.Value("model_read_bytes_total", {rank});
    flops = page.Value("model_flops_total", {rank});
  }

  const std::string rank;
  std::array<MetricHistogram*, std::size(kPhases)> phase_seconds;
  std::array<MetricHistogram*, std::size(kOps)> collective_seconds;
  std::array<MetricValue*, std::size(kOps)> collective_bytes;
  MetricHistogram* sampling;
  MetricValue *outputs, *steps, *steps_ahead, *read_bytes, *flops;

  // Of the bound graph: where the time of each op goes, and what it had used when the last step
  // ended.
  std::vector<Phase> phase_of_op;
  std::vector<char> samples;
  std::vector<int64_t> seen_ns;
  uint64_t seen_ahead = 0;
  int64_t collective_ns = 0;  // since the last step's end
};

WorkerMetrics::WorkerMetrics(const Build& build)
    : page_(WorkerMetricTable(), {}),
      collective_(build.backend == "cuda" ? "nccl" : build.backend) {}
WorkerMetrics::~WorkerMetrics() { page_.SetCollector(nullptr); }

absl::StatusOr<std::unique_ptr<WorkerMetrics>> WorkerMetrics::Serve(const std::string& host,
                                                                    int port, const Build& build) {
  std::unique_ptr<WorkerMetrics> metrics(new WorkerMetrics(build));
  metrics->page_.SetInfo("worker_build_info", {build.version, build.backend, build.isa});
  metrics->page_.SetCollector([page = &metrics->page_] { SetProcessMetrics(*page); });
  absl::Status status = metrics->page_.Serve(host, port);
  if (!status.ok()) return status;
  return metrics;
}

void WorkerMetrics::OnMachine(uint64_t read_bytes_per_s, double flops_per_s) {
  page_.Value("worker_peak_read_bytes_per_second")->Set(static_cast<double>(read_bytes_per_s));
  page_.Value("worker_peak_flops_per_second")->Set(flops_per_s);
}

void WorkerMetrics::OnAssigned(uint32_t rank) {
  if (rank_ != nullptr && rank_->rank == absl::StrCat(rank)) return;
  rank_ = std::make_unique<RankSeries>(page_, rank, collective_);
}

void WorkerMetrics::OnLoaded(const LoadedWeights& weights, absl::Duration took) {
  std::map<std::string, uint64_t> by_format;
  for (size_t i = 0; i < weights.matrix_count(); ++i) {
    const PackedSpec& spec = weights.SpecOf(i);
    if (spec.rows > 0) by_format[spec.Describe()] += weights.BytesOf(i);
  }
  if (weights.vector_bytes > 0) by_format["vectors"] += weights.vector_bytes;
  for (const auto& [format, bytes] : by_format)
    page_.Value("weight_bytes", {rank_->rank, format})->Set(static_cast<double>(bytes));
  page_.Value("memory_bytes", {rank_->rank, "weights"})
      ->Set(static_cast<double>(weights.arena_bytes));
  page_.Value("weight_read_bytes_total", {rank_->rank})->Add(weights.read_bytes);
  page_.Value("weight_load_seconds", {rank_->rank})->Set(absl::ToDoubleSeconds(took));
}

void WorkerMetrics::OnLoadFailed(const absl::Status& status) {
  page_.Value("weight_load_errors_total", {absl::StatusCodeToString(status.code())})->Add();
}

void WorkerMetrics::OnBound(const std::vector<internal::KernelChoice>& kernels,
                            uint64_t workspace_bytes, const std::vector<std::string>& kinds) {
  page_.Value("memory_bytes", {rank_->rank, "workspace"})
      ->Set(static_cast<double>(workspace_bytes));
  for (const internal::KernelChoice& choice : kernels) {
    page_
        .Value("worker_kernel_info",
               {rank_->rank, choice.op(), choice.format(), choice.activations(), choice.kernel(),
                choice.fallback() ? "fallback" : "fast"})
        ->Set(choice.nodes());
  }
  rank_->phase_of_op.clear();
  rank_->samples.clear();
  for (const std::string& kind : kinds) {
    rank_->phase_of_op.push_back(PhaseOf(kind));
    rank_->samples.push_back(absl::StrContains(kind, "sample"));
  }
  rank_->seen_ns.assign(kinds.size(), 0);
  rank_->seen_ahead = 0;
}

void WorkerMetrics::OnCacheAllocated(uint64_t bytes) {
  page_.Value("memory_bytes", {rank_->rank, "kv"})->Set(static_cast<double>(bytes));
}

void WorkerMetrics::OnBringUp(const internal::BringUp& times) {
  const uint64_t us[] = {times.process_start_us(), times.kernel_probe_us(), times.registration_us(),
                         times.read_us(),          times.pack_us(),         times.load_us(),
                         times.bind_us(),          times.join_us(),         times.self_test_us(),
                         times.kv_cache_us(),      times.total_us()};
  static_assert(std::size(us) == std::size(kBringUpPhases));
  for (size_t i = 0; i < std::size(us); ++i) {
    page_.Value("worker_bring_up_seconds", {rank_->rank, kBringUpPhases[i]})
        ->Set(static_cast<double>(us[i]) * 1e-6);
  }
}

void WorkerMetrics::OnStep(absl::Duration took, uint64_t outputs, const StepWork::Amount& work,
                           const std::vector<int64_t>& op_ns, uint64_t launched_ahead) {
  RankSeries& series = *rank_;
  CHECK_EQ(op_ns.size(), series.seen_ns.size());
  std::array<double, std::size(kPhases)> seconds = {};
  double sampling = 0;
  for (size_t i = 0; i < op_ns.size(); ++i) {
    const double spent = static_cast<double>(op_ns[i] - series.seen_ns[i]) * 1e-9;
    series.seen_ns[i] = op_ns[i];
    seconds[series.phase_of_op[i]] += spent;
    if (series.samples[i]) sampling += spent;
  }
  // Those that a watcher sees are inside ops of no phase, and between them.
  seconds[kBetweenRanks] += static_cast<double>(std::exchange(series.collective_ns, 0)) * 1e-9;
  seconds[kOther] = 0;
  const double known = std::accumulate(seconds.begin(), seconds.end(), 0.);
  seconds[kOther] = std::max(0., absl::ToDoubleSeconds(took) - known);
  for (size_t i = 0; i < seconds.size(); ++i) series.phase_seconds[i]->Observe(seconds[i]);
  if (outputs > 0) series.sampling->Observe(sampling);
  series.outputs->Add(outputs);
  series.steps->Add();
  series.steps_ahead->Add(launched_ahead - std::exchange(series.seen_ahead, launched_ahead));
  series.read_bytes->Add(work.read_bytes);
  series.flops->Add(work.flops);
}

void WorkerMetrics::OnIdleStep() {
  rank_->collective_ns = 0;
  rank_->steps->Add();
}

void WorkerMetrics::OnCollective(CollectiveOp op, uint64_t bytes, int64_t nanoseconds) {
  const auto i = static_cast<size_t>(op);
  rank_->collective_seconds[i]->Observe(static_cast<double>(nanoseconds) * 1e-9);
  rank_->collective_bytes[i]->Add(bytes);
  rank_->collective_ns += nanoseconds;
}

std::vector<MetricDef> WorkerMetricTable() {
  std::vector<MetricDef> table;
  const auto add = [&](const char* name, MetricType type, const char* unit,
                       std::vector<MetricLabel> labels, const char* help, const char* when) {
    MetricDef& def = table.emplace_back();
    def.name = name;
    def.type = type;
    def.unit = unit;
    def.labels = std::move(labels);
    def.help = help;
    def.when = when;
    return &def;
  };
  const MetricLabel rank = {"rank", {}, "one: this worker's, from its assignment on"};
  add("worker_build_info", kGauge, "",
      {{"version", {}, "one"},
       {"backend", {}, "one: cpu or cuda"},
       {"isa", {}, "one: the widest that kernels may use; of a GPU its architecture"}},
      "Constant 1.", "From the start.");
  add("worker_kernel_info", kGauge, "nodes",
      {rank,
       {"op", {}, "kinds of nodes"},
       {"format", {}, "packed forms of the model's weights, or what the cache holds"},
       {"activations", {}, "a16, a8, f32 or none"},
       {"kernel", {}, "one or two an op and format"},
       {"speed", {"fast", "fallback"}}},
      "The kernels that really run: how many nodes of the graph on each.",
      "When the graph is bound.");
  add("worker_step_seconds", kHistogram, "seconds", {rank, {"phase", Texts(kPhases)}},
      "Time of a step that had rows, by phase; the phases add up to the step.",
      "At its end. collective: waiting for the other ranks included, so the straggler is the rank "
      "with most of the rest; device: on a GPU all that runs there, unless --profile-ops divides "
      "it; other: what is neither matrices nor attention.")
      ->buckets = kStep;
  add("worker_steps_total", kCounter, "steps", {rank}, "Steps run, the empty ones too.",
      "At the end of a step.");
  add("worker_steps_ahead_total", kCounter, "steps", {rank},
      "Steps that a GPU was given before the results of the step before had left the worker; 0 on "
      "the CPU. For the others it waited: their plan came late, took a slot of the step before, or "
      "scored on.",
      "At the end of the step before.");
  add("sampling_seconds", kHistogram, "seconds", {rank},
      "Logits to tokens, with the collectives that it needs.",
      "At the end of a step that sampled; part of worker_step_seconds.")
      ->buckets = kStep;
  add("worker_output_tokens_total", kCounter, "tokens", {rank},
      "Tokens sampled by the group while this rank was in it.", "At the end of a step.");
  const std::vector<MetricLabel> collective = {
      rank, {"op", Texts(kOps)}, {"backend", {}, "one: cpu, or nccl between GPUs"}};
  add("collective_seconds", kHistogram, "seconds", collective,
      "An operation between ranks, waiting for the others included.",
      "Around each operation of a step that the host takes part in, the comparison of plans and "
      "tokens too; not around sums inside a GPU's work.")
      ->buckets = kCollective;
  add("collective_bytes_total", kCounter, "bytes", collective,
      "What this rank put into operations.", "As collective_seconds.");
  add("model_read_bytes_total", kCounter, "bytes", {rank},
      "Bytes that steps must read at the least: weights once a step, the cache of each row once. "
      "Its rate over worker_peak_read_bytes_per_second is the use of bandwidth.",
      "At the end of a step, counted from its plan.");
  add("model_flops_total", kCounter, "operations", {rank},
      "Operations of the matrices, 2 a weight and token. Its rate over "
      "worker_peak_flops_per_second is the use of the arithmetic.",
      "At the end of a step, counted from its plan.");
  add("worker_peak_read_bytes_per_second", kGauge, "bytes", {},
      "What one thread can read from memory in a second; a GPU from its own, by its data sheet.",
      "Measured at start.");
  add("worker_peak_flops_per_second", kGauge, "operations", {},
      "What the fastest linear kernel does in a second on all compute threads.",
      "At start: the probe's best figure of one thread times the threads; 0 without a probe "
      "(--isa, a GPU).");
  add("weight_bytes", kGauge, "bytes",
      {rank, {"format", {}, "packed forms of the model's weights; \"vectors\": norms, biases"}},
      "Weights in memory, tile padding included.", "When they are loaded.");
  add("memory_bytes", kGauge, "bytes", {rank, {"kind", {"weights", "kv", "workspace"}}},
      "Memory by kind, in full size.", "When it is allocated.");
  add("weight_read_bytes_total", kCounter, "bytes", {rank}, "Bytes read from checkpoint files.",
      "When weights are loaded.");
  add("weight_load_seconds", kGauge, "seconds", {rank}, "Time of the last load of weights.",
      "When weights are loaded: reading and packing.");
  add("weight_load_errors_total", kCounter, "loads",
      {{"reason", ErrorNames(), "the 16 canonical error codes"}}, "Loads or bindings that failed.",
      "When one fails.");
  add("worker_bring_up_seconds", kGauge, "seconds", {rank, {"phase", Texts(kBringUpPhases)}},
      "From the process's start to its first readiness, by phase.",
      "When the rank is ready. kernel_probe is part of process_start; read and pack are part of "
      "load, summed over threads.");
  for (MetricDef& def : ProcessMetricTable()) table.push_back(std::move(def));
  return table;
}

std::string WorkerMetricsDoc() { return DescribeMetrics(WorkerMetricTable()); }

}  // namespace bitshard
