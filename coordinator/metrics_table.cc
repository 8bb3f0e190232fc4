// Every series of the coordinator, in one table: names, labels and their values, buckets, and how
// each is measured. metrics.cc fills them.
#include <initializer_list>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "coordinator/metrics.h"
#include "proto/admin.pb.h"
#include "proto/health.pb.h"
#include "proto/inference.pb.h"

namespace bitshard {
namespace {

constexpr auto kCounter = MetricType::kCounter;
constexpr auto kGauge = MetricType::kGauge;
constexpr auto kHistogram = MetricType::kHistogram;

// Supersets of the bounds that vLLM's dashboards know, finer where small models live. Seconds.
const MetricBuckets kTtft = {"TTFT", {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                      1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}};
const MetricBuckets kItl = {
    "ITL", {.001, .002, .004, .006, .008, .01, .015, .02, .025, .03, .04, .05, .075, .1,
            .15,  .2,   .3,   .4,   .5,   .75, 1,    2.5, 5,    7.5, 10,  20,  40,   80}};
const MetricBuckets kLatency = {"LAT",
                                {.01, .02, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,   2.5,  5,
                                 10,  15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}};
// What takes microseconds.
const MetricBuckets kWork = {"WORK",
                             {.00001, .00002, .00005, .0001, .0002, .0005, .001, .002, .005, .01,
                              .02, .05, .1, .2, .5, 1, 2, 5}};
const MetricBuckets kStepTokens = {
    "STEP_TOKENS", {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}};
const MetricBuckets kChoices = {"N", {1, 2, 5, 10, 20}};
const MetricBuckets kFew = {"FEW", {0, 1, 2, 3, 5, 10, 20, 50, 100}};

template <typename Enums>
std::vector<std::string> Names(const Enums& all) {
  std::vector<std::string> names;
  for (const auto one : all) names.emplace_back(Name(one));
  return names;
}

std::vector<std::string> CodeNames() {
  std::vector<std::string> names;
  for (int code = 0; code <= 16; ++code)
    names.push_back(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  return names;
}

std::vector<std::vector<std::string>> UsualEnds() {
  std::vector<std::vector<std::string>> ends;
  const auto add = [&](EndReason reason, absl::StatusCode code) {
    ends.push_back({std::string(Name(reason)), absl::StatusCodeToString(code)});
  };
  add(EndReason::kStop, absl::StatusCode::kOk);
  add(EndReason::kLength, absl::StatusCode::kOk);
  add(EndReason::kCancelled, absl::StatusCode::kCancelled);
  add(EndReason::kDeadline, absl::StatusCode::kDeadlineExceeded);
  add(EndReason::kError, absl::StatusCode::kInternal);
  add(EndReason::kError, absl::StatusCode::kUnavailable);
  add(EndReason::kWorkerLost, absl::StatusCode::kUnavailable);
  add(EndReason::kShutdown, absl::StatusCode::kUnavailable);
  return ends;
}

void AddMethods(const google::protobuf::FileDescriptor& file, std::vector<CallMethod>& out) {
  for (int s = 0; s < file.service_count(); ++s) {
    const google::protobuf::ServiceDescriptor& service = *file.service(s);
    for (int m = 0; m < service.method_count(); ++m)
      out.push_back({service.full_name(), service.method(m)->name()});
  }
}

class Table {
 public:
  MetricDef& Add(const char* name, MetricType type, const char* unit, const char* help,
                 const char* when) {
    MetricDef& def = defs.emplace_back();
    def.name = name;
    def.type = type;
    def.unit = unit;
    def.help = help;
    def.when = when;
    return def;
  }
  void Histogram(const char* name, const char* unit, const MetricBuckets& buckets, const char* help,
                 const char* when, std::vector<MetricLabel> labels = {}) {
    MetricDef& def = Add(name, kHistogram, unit, help, when);
    def.buckets = buckets;
    def.labels = std::move(labels);
  }
  void Labelled(const char* name, MetricType type, const char* unit,
                std::vector<MetricLabel> labels, const char* help, const char* when) {
    Add(name, type, unit, help, when).labels = std::move(labels);
  }

  std::vector<MetricDef> defs;
};

constexpr char kAtScrape[] = "At a scrape, from one snapshot of the engine.";
constexpr char kAtGroupScrape[] = "At a scrape, from one snapshot of the fleet.";

void AddInfo(Table& t) {
  t.Labelled("build_info", kGauge, "", {{"version", {}, "one"}, {"backend", {"cpu"}}},
             "Constant 1.", "From the start.");
  t.Labelled(
      "model_info", kGauge, "",
      {{"family", {}, "one"},
       {"weight_formats", {}, "one: comma-separated"},
       {"kernel",
        {},
        "one: the linear kernel that runs most layers on rank 0; none before a group is ready"},
       {"kv_dtype", {}, "one"},
       {"activations", {}, "one"},
       {"numerics",
        {},
        "one: deterministic or nondeterministic, as rank 0 runs; none before a group is ready"},
       {"tp", {}, "one"},
       {"max_model_len", {}, "one"},
       {"fingerprint", {}, "one"}},
      "Constant 1.", "From the start; `kernel` and `numerics` once a group is ready.");
  t.Labelled("cache_config_info", kGauge, "",
             {{"block_size", {}, "one"},
              {"num_blocks", {}, "one: 0 before a group is ready"},
              {"cache_dtype", {}, "one"}},
             "Constant 1.", kAtScrape);
}

void AddRequests(Table& t) {
  t.Labelled("requests_received_total", kCounter, "requests", {{"api", Names(kAllFaces)}},
             "Requests for tokens, scores or vectors that came in, accepted or not. Each input of "
             "an Embed call is one, here and everywhere.",
             "When the whole request is there, before anything is read in it; further inputs of "
             "an Embed call once they are known.");
  MetricDef& ends = t.Add("requests_total", kCounter, "requests",
                          "Accepted requests that ended, each exactly once.",
                          "At the end of a request, before its caller is told; read at a scrape, "
                          "from one snapshot of the engine. Of several choices: stop when all of "
                          "them stopped, length when one was cut off.");
  ends.labels = {{"finished_reason", Names(kAllEndReasons)},
                 {"grpc_code", CodeNames(), "the 17 canonical codes"}};
  ends.from_start = UsualEnds();
  t.Labelled("admission_rejections_total", kCounter, "requests",
             {{"reason", Names(kAllRejectReasons)}}, "Requests that were not accepted.",
             "When the frontend or the engine's admission refuses; read at a scrape, from one "
             "snapshot of the engine.");
  t.Add("requests_validating", kGauge, "requests",
        "Requests that are neither accepted nor refused yet.",
        "At a scrape: received less all the others. At every scrape received = ended + rejected + "
        "validating + waiting + running + paused + recovering.");
  t.Add("requests_running", kGauge, "requests", "Requests with a choice in steps.", kAtScrape);
  t.Add("requests_waiting", kGauge, "requests",
        "Requests in the queue; of a group that is rebuilt too.", kAtScrape);
  t.Add("requests_paused", kGauge, "requests",
        "Requests that wait for a slow reader: none, it is ended instead of paused.", kAtScrape);
  t.Add("requests_recovering", kGauge, "requests",
        "Requests that wait for a new group: none, they end with the old one.", kAtScrape);
  t.Labelled("requests_waiting_by_reason", kGauge, "requests",
             {{"reason", {"capacity", "deferred", "no_group"}}},
             "Requests in the queue: for want of room, held back by a rule though there is room, "
             "or without a group.",
             "At a scrape; the sum is requests_waiting.");
  t.Add("waiting_tokens", kGauge, "tokens", "Prompt tokens in the queue.", kAtScrape);
  t.Add("oldest_waiting_seconds", kGauge, "seconds",
        "How long the longest waiting request has waited.",
        "At a scrape, since its receipt; 0 with an empty queue.");
  t.Add("predicted_wait_seconds", kGauge, "seconds",
        "What admission expects a new request to wait for its first step.", kAtScrape);
  t.Histogram("rejection_seconds", "seconds", kWork, "Time that a refusal took.",
              "From receipt to the status handed to the transport; refusals by the frontend and by "
              "admission.");
}

void AddLatencies(Table& t, const MetricBuckets& tokens) {
  t.Histogram("time_to_first_token_seconds", "seconds", kTtft, "Time to the first token.",
              "From the request fully received to its first token handed to the transport (a unary "
              "answer: put into it). Requests without a token are in ended_without_token_total: "
              "both together are the count of e2e_request_latency_seconds.");
  t.Add("ended_without_token_total", kCounter, "requests",
        "Accepted requests that ended before a token was handed to the transport; those that only "
        "score or embed too.",
        "When the call is over.");
  t.Histogram("inter_token_latency_seconds", "seconds", kItl,
              "Gap between two tokens of a choice of a request.",
              "One observation a gap between committed steps of a choice.");
  t.Histogram("request_time_per_output_token_seconds", "seconds", kItl,
              "Mean time of a token after the first.",
              "At the end of a request with n > 1 tokens in its longest choice: (end - first token "
              "committed) / (n - 1).");
  t.Histogram(
      "e2e_request_latency_seconds", "seconds", kLatency, "Time of an accepted request.",
      "At its end: from receipt to the end in the engine. The six phases below add up to it.");
  t.Histogram("request_frontend_time_seconds", "seconds", kLatency,
              "Phase: reading, checking, tokenizing, admission.",
              "At the end: from receipt to the engine thread's taking it.");
  t.Histogram("request_queue_time_seconds", "seconds", kLatency, "Phase: in the queue.",
              "At the end: from there to its first time in a step's plan.");
  t.Histogram("request_prefill_time_seconds", "seconds", kLatency, "Phase: prompt.",
              "At the end: from there to the first token committed (or the end), less recompute.");
  t.Histogram("request_decode_time_seconds", "seconds", kLatency, "Phase: tokens.",
              "At the end: from there to the end, less recompute.");
  t.Histogram("request_recompute_time_seconds", "seconds", kLatency,
              "Phase: making up for lost blocks.",
              "At the end: each time from preemption of a choice, or the loss of the group, to the "
              "request's next token committed.");
  t.Histogram("request_paused_time_seconds", "seconds", kLatency,
              "Phase: waiting for a slow reader.",
              "At the end; always 0, slow readers are ended instead of paused.");
  t.Histogram("request_inference_time_seconds", "seconds", kLatency,
              "Time in the engine after the queue.", "At the end: prefill + decode + recompute.");
  t.Histogram("request_prompt_tokens", "tokens", tokens,
              "Prompt tokens of a request; of a resumed one the tokens that came along too.",
              "At its end.");
  t.Histogram("request_generation_tokens", "tokens", tokens,
              "Tokens generated for a request, all choices; none that came along with it.",
              "At its end.");
  t.Histogram("request_max_num_generation_tokens", "tokens", tokens,
              "Most tokens of a choice of a request.",
              "At its end; as request_generation_tokens where there is one choice.");
  t.Histogram("request_params_max_tokens", "tokens", tokens, "max_tokens of a request.",
              "At its end.");
  t.Histogram("request_prefill_kv_computed_tokens", "tokens", tokens,
              "Prompt tokens of a request that were not in the prefix cache.", "At its end.");
  t.Histogram("request_params_n", "choices", kChoices, "Choices that a request asked for.",
              "At its end.");
  t.Histogram("request_num_preemptions", "preemptions", kFew, "Preemptions of a request.",
              "At its end.");
}

void AddEngine(Table& t) {
  t.Add("prompt_tokens_total", kCounter, "tokens",
        "Prompt tokens of requests that were computed to their end; of resumed ones the tokens "
        "that came along too.",
        "With the first token, or the scores; once, however many choices.");
  t.Add("prompt_tokens_cached_total", kCounter, "tokens",
        "Of these, tokens out of the prefix cache.", "With the first token, or the scores.");
  t.Add("generation_tokens_total", kCounter, "tokens", "Tokens generated.",
        "When a step's tokens are committed.");
  t.Labelled("preemptions_total", kCounter, "preemptions", {{"mode", {"recompute", "swap"}}},
             "Running requests that gave their blocks back.",
             "When a step is planned; there is no swap.");
  t.Add("non_finite_requests_total", kCounter, "requests",
        "Requests that ended INTERNAL because logits were no finite numbers.", "At the commit.");
  t.Add("stale_outputs_total", kCounter, "tokens",
        "Outputs dropped by the commit rule; normal around cancels and preemptions.", kAtScrape);
  t.Add("prefix_cache_queries_total", kCounter, "tokens",
        "Prompt tokens looked up in the prefix cache.", kAtScrape);
  t.Add("prefix_cache_hits_total", kCounter, "tokens", "Of these, tokens found.", kAtScrape);
  t.Add("prefix_cache_evicted_blocks_total", kCounter, "blocks",
        "Cached blocks thrown out for others.", kAtScrape);
  t.Labelled("kv_blocks", kGauge, "blocks", {{"state", {"free", "used", "cached", "quarantined"}}},
             "KV blocks by state; the sum is constant while a group lasts.", kAtScrape);
  t.Add("kv_cache_usage_ratio", kGauge, "ratio",
        "Used KV blocks of all, 0 to 1; cached ones count as free.", kAtScrape);
  t.Labelled("linear_state_slots", kGauge, "slots", {{"state", {"free", "used"}}},
             "Slots for recurrent state: none, no hybrid model is built yet.", kAtScrape);
  const MetricLabel kind = {"kind", Names(kAllStepKinds)};
  t.Histogram("step_seconds", "seconds", kItl, "Execution of a step.",
              "At its result: on rank 0, waiting for the other ranks included. Steps overlap at "
              "the coordinator, hence not measured there.",
              {kind});
  t.Histogram("step_round_trip_seconds", "seconds", kItl, "A step as the engine sees it.",
              "At its result: from the plan handed to the fleet to the result at the engine; with "
              "two plans out it includes the wait for the one before.",
              {kind});
  t.Histogram("step_tokens", "tokens", kStepTokens, "Positions computed in a step.",
              "At its result.", {kind});
  t.Histogram("step_rows", "choices", kStepTokens, "Choices of requests in a step.",
              "At its result.", {kind});
  t.Histogram(
      "scheduler_seconds", "seconds", kWork,
      "Work of the engine thread in a step: host overhead is its rate over that of step_seconds.",
      "plan: choosing and writing one plan; commit: taking one result, text and stops included.",
      {{"op", Names(kAllSchedulerOps)}});
  t.Histogram("tokenizer_seconds", "seconds", kWork, "Work on texts.",
              "request: all that is done to a prompt before admission (checks, chat template, "
              "tokens); the others: the methods of these names.",
              {{"op", Names(kAllTokenizerOps)}});
  t.Histogram("grammar_compile_seconds", "seconds", kWork, "Compiling a constraint.",
              "When it is done, off the engine thread.", {{"kind", Names(kAllGrammarKinds)}});
  t.Labelled("grammar_compile_errors_total", kCounter, "grammars",
             {{"kind", Names(kAllGrammarKinds)}}, "Constraints that did not compile.",
             "When it is refused.");
  t.Add("grammar_cache_hits_total", kCounter, "grammars", "Constraints that were compiled already.",
        "At the request.");
}

void AddFleet(Table& t, uint32_t world) {
  MetricLabel rank = {"rank", {}, "0 to the number of workers - 1"};
  for (uint32_t i = 0; i < world; ++i) rank.values.push_back(absl::StrCat(i));
  t.Labelled("group_state", kGauge, "", {{"state", {"forming", "ready", "lost"}}},
             "1 for the state that the group is in.", kAtGroupScrape);
  t.Add("group_term", kGauge, "", "Term of this coordinator's hold on the workers.",
        kAtGroupScrape);
  t.Add("group_epoch", kGauge, "", "Epoch of the communicator.", kAtGroupScrape);
  t.Add("group_spares", kGauge, "workers", "Registered workers without a rank.", kAtGroupScrape);
  const MetricLabel cause = {"cause", Names(kAllLossCauses)};
  t.Labelled("group_losses_total", kCounter, "losses", {cause}, "Ready groups that were lost.",
             "When the engine is told, by the code of the cause.");
  t.Labelled("group_rebuilds_total", kCounter, "rebuilds", {cause},
             "Groups that were ready again after a loss.",
             "When the new group is ready, by the cause of the loss.");
  t.Labelled("requests_resumed_total", kCounter, "requests", {cause},
             "Requests with tokens that went on in a new group.",
             "When the new group is ready; 0 while requests end with their group.");
  t.Labelled("worker_up", kGauge, "", {rank}, "1 while the rank takes part in a ready group.",
             kAtGroupScrape);
  t.Labelled("worker_heartbeat_age_seconds", kGauge, "seconds", {rank},
             "Since the rank was last heard; 0 without the rank.", kAtGroupScrape);
  t.Labelled("worker_step_lag", kGauge, "steps", {rank},
             "Steps that the rank has begun fewer than the foremost one.",
             "At a scrape, from the last heartbeats (every 250 ms).");
  t.Labelled("worker_load_progress_ratio", kGauge, "ratio", {rank},
             "Weights read of those to read, 0 to 1; 1 once loaded.", kAtGroupScrape);
  t.Labelled("worker_memory_bytes", kGauge, "bytes",
             {rank, {"kind", {"weights", "kv_cache", "workspace", "resident", "peak_resident"}}},
             "Memory of the rank's process: the first three as allocated, then what is resident.",
             "At a scrape, from the rank's last report (every 5 s).");
}

void AddFrontend(Table& t) {
  t.Add("stream_backlog_chunks", kGauge, "chunks",
        "Pieces of output that wait for their reader, all streams; at most one a choice, what "
        "comes is merged into it.",
        "Counted as they come and go.");
  t.Add("stream_coalesced_total", kCounter, "chunks",
        "Pieces of output that were merged into one that waited.", "When they come.");
  t.Add("slow_reader_aborts_total", kCounter, "requests",
        "Streams ended because their client read too slowly.", "When it is decided.");
  const MetricLabel service = {"grpc_service",
                               {},
                               "bitshard.v1.Inference, bitshard.v1.Admin, grpc.health.v1.Health; "
                               "\"other\": reflection, and what there is not"};
  const MetricLabel method = {"grpc_method", {}, "the methods of these; \"other\""};
  std::vector<std::vector<std::string>> methods, with_code;
  for (const CallMethod& one : CountedMethods()) {
    methods.push_back({one.service, one.method});
    for (const std::string& code : CodeNames())
      with_code.push_back({one.service, one.method, code});
  }
  t.Labelled("grpc_server_started_total", kCounter, "calls", {service, method},
             "gRPC calls that began, on all ports.", "When the call's headers are there.");
  t.defs.back().from_start = methods;
  t.Labelled(
      "grpc_server_handled_total", kCounter, "calls",
      {service, method, {"grpc_code", CodeNames(), "the 17 canonical codes"}},
      "gRPC calls that ended.",
      "When the status is handed to the transport; CANCELLED when the connection went before.");
  t.defs.back().from_start = with_code;
  t.Histogram("grpc_server_handling_seconds", "seconds", kLatency,
              "Time of a gRPC call, a stream from its beginning to its end.",
              "From there to there.", {service, method});
  t.defs.back().from_start = methods;
}

}  // namespace

std::vector<CallMethod> CountedMethods() {
  std::vector<CallMethod> methods;
  AddMethods(*v1::GenerateRequest::descriptor()->file(), methods);
  AddMethods(*v1::GetStatusRequest::descriptor()->file(), methods);
  AddMethods(*grpc::health::v1::HealthCheckRequest::descriptor()->file(), methods);
  methods.push_back({"other", "other"});
  return methods;
}

std::vector<MetricDef> CoordinatorMetricTable(const CoordinatorMetrics::Info& info) {
  Table t;
  AddInfo(t);
  AddRequests(t);
  AddLatencies(t, {"TOK", OneTwoFive(info.context_tokens)});
  AddEngine(t);
  AddFleet(t, info.world);
  AddFrontend(t);
  for (MetricDef& def : ProcessMetricTable()) t.defs.push_back(std::move(def));
  return std::move(t.defs);
}

std::string CoordinatorMetricsDoc() {
  CoordinatorMetrics::Info info;
  info.context_tokens = 1 << 20;
  return DescribeMetrics(CoordinatorMetricTable(info));
}

}  // namespace bitshard
