// bitshard bench: speed of a service, beside what the machine could do.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/tools/bench_measure.h"
#include "coordinator/tools/bench_report.h"
#include "coordinator/tools/bench_target.h"
#include "coordinator/tools/client.h"
#include "coordinator/tools/local_service.h"
#include "coordinator/tools/progress.h"
#include "coordinator/tools/synthetic_flags.h"
#include "coordinator/tools/verb.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"

ABSL_FLAG(bool, local, false, "start a service of the given model for the time of the benchmark");
ABSL_FLAG(std::vector<std::string>, prefill, {"512"}, "prompt lengths, comma-separated");
ABSL_FLAG(int32_t, decode, 64, "tokens to generate in decode lines; 0 = no decode lines");
ABSL_FLAG(std::vector<std::string>, context, std::vector<std::string>({"0", "2048"}),
          "contexts of the decode lines, comma-separated");
ABSL_FLAG(std::vector<std::string>, concurrent, {"16"},
          "numbers of sequences at once, comma-separated");
ABSL_FLAG(int32_t, concurrent_context, 64, "context of each of the concurrent sequences");
ABSL_FLAG(int32_t, repeat, 3, "how often everything is measured");
ABSL_FLAG(std::string, prompt_file, "", "cut prompts out of this text instead of drawing ids");
ABSL_FLAG(std::string, admin_address, "", "host:port of a running service's admin port");
ABSL_FLAG(bool, json, false, "one JSON document instead of the table");
ABSL_FLAG(std::string, json_file, "", "append the JSON document to this file, as one line");
ABSL_DECLARE_FLAG(std::string, address);
ABSL_DECLARE_FLAG(std::string, model_name);
ABSL_DECLARE_FLAG(int64_t, seed);

namespace bitshard {
namespace {

constexpr int64_t kSeed = 1;
constexpr uint32_t kMaxSequences = 1024;
constexpr uint32_t kMaxTokens = 1u << 24;

std::atomic<bool> interrupted{false};

struct Options {
  std::string model;  // path; may be "" when the service runs already
  bool local = false;
  std::optional<SyntheticModel> synthetic;  // then `model` spells it
  std::vector<BenchCase> cases;
  int repeat = 1;
};

absl::StatusOr<std::vector<uint32_t>> Numbers(const std::string& flag,
                                              const std::vector<std::string>& words, uint32_t least,
                                              uint32_t most) {
  std::vector<uint32_t> numbers;
  for (const std::string& word : words) {
    if (word.empty()) continue;
    uint32_t number = 0;
    if (!absl::SimpleAtoi(word, &number) || number < least || number > most) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", absl::StrJoin(words, ","),
                                                     ": \"", word, "\" is not a whole number from ",
                                                     least, " to ", most));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<Options> OptionsFromFlags(const std::vector<std::string>& args) {
  Options options;
  ASSIGN_OR_RETURN(options.synthetic, SyntheticModelFromFlags());
  options.local = absl::GetFlag(FLAGS_local) || options.synthetic;
  if (options.synthetic) {
    if (!args.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--synthetic=", options.synthetic->config,
                                                     " is the model: \"", args[0],
                                                     "\" is one too many"));
    }
    options.model = Spelled(*options.synthetic);
  } else if (options.local && args.size() != 1) {
    return absl::InvalidArgumentError(
        "--local needs exactly one model: a GGUF file or a Hugging Face folder");
  }
  if (args.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("takes one model at most, that of the running service: \"", args[0],
                     "\" or \"", args[1], "\"?"));
  }
  if (!args.empty()) options.model = args[0];
  if (options.local && !absl::GetFlag(FLAGS_admin_address).empty()) {
    return absl::InvalidArgumentError(
        "--admin-address is of a running service, --local and --synthetic start one");
  }
  if (!options.local) {
    RETURN_IF_ERROR(CheckAddress("--address", absl::GetFlag(FLAGS_address)));
    if (const std::string admin = absl::GetFlag(FLAGS_admin_address); !admin.empty())
      RETURN_IF_ERROR(CheckAddress("--admin-address", admin));
  }
  ASSIGN_OR_RETURN(const auto prefills,
                   Numbers("prefill", absl::GetFlag(FLAGS_prefill), 1, kMaxTokens));
  ASSIGN_OR_RETURN(const auto contexts,
                   Numbers("context", absl::GetFlag(FLAGS_context), 0, kMaxTokens));
  ASSIGN_OR_RETURN(const auto concurrent,
                   Numbers("concurrent", absl::GetFlag(FLAGS_concurrent), 2, kMaxSequences));
  const int decode = absl::GetFlag(FLAGS_decode);
  if (decode != 0 && (decode < 2 || decode > static_cast<int>(kMaxTokens))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--decode=", decode, ": 0 for no decode lines, or 2 tokens and more"));
  }
  const int concurrent_context = absl::GetFlag(FLAGS_concurrent_context);
  if (concurrent_context < 0 || concurrent_context > static_cast<int>(kMaxTokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--concurrent-context=", concurrent_context, " must be 0 or more"));
  }
  options.repeat = absl::GetFlag(FLAGS_repeat);
  if (options.repeat < 1 || options.repeat > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--repeat=", options.repeat, " must be 1 to 1000"));
  }
  for (uint32_t tokens : prefills)
    options.cases.push_back({.kind = BenchCase::Kind::kPrefill, .prompt_tokens = tokens});
  const uint32_t output = static_cast<uint32_t>(decode);
  if (output > 0) {
    for (uint32_t context : contexts)
      options.cases.push_back({.prompt_tokens = std::max(context, 1u), .output_tokens = output});
    for (uint32_t sequences : concurrent) {
      options.cases.push_back(
          {.prompt_tokens = std::max(static_cast<uint32_t>(concurrent_context), 1u),
           .output_tokens = output,
           .sequences = sequences});
    }
  }
  if (options.cases.empty()) {
    return absl::InvalidArgumentError("nothing to measure: --prefill is empty and --decode is 0");
  }
  return options;
}

absl::Status CheckContext(const std::vector<BenchCase>& cases, uint64_t context) {
  for (const BenchCase& what : cases) {
    if (uint64_t{what.prompt_tokens} + what.output_tokens > context) {
      return absl::InvalidArgumentError(
          absl::StrCat(what.Name(), ": ", what.prompt_tokens, " + ", what.output_tokens,
                       " tokens exceed the model's context of ", context,
                       "; choose a smaller --prefill, --context or --decode"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchRun> RunAll(const Options& options) {
  const auto stop = [] { return interrupted.load(); };
  ProgressBar progress;
  BenchTarget target;
  BenchRun run;
  run.local = options.local;
  if (options.synthetic) run.note = options.synthetic->Describe();
  if (!options.model.empty()) {
    RETURN_IF_ERROR(target.ReadModel(options.model));
    RETURN_IF_ERROR(CheckContext(options.cases, target.context_tokens()));  // before a start
  }
  int threads = 0;
  if (run.local) {
    progress.Phase("starting the service");
    ASSIGN_OR_RETURN(LocalServiceOptions local, LocalServiceOptionsFromFlags(options.model));
    threads = local.threads * local.workers;
    RETURN_IF_ERROR(target.StartService(std::move(local), stop));
  } else {
    target.Connect(absl::GetFlag(FLAGS_address), absl::GetFlag(FLAGS_admin_address));
  }
  ASSIGN_OR_RETURN(const v1::Model model, target.FindModel(absl::GetFlag(FLAGS_model_name)));
  run.model = model.name();
  run.fingerprint = model.fingerprint();
  run.activations = model.activations();
  run.kv_cache_type = model.kv_cache_type();
  RETURN_IF_ERROR(CheckContext(options.cases, model.context_tokens()));
  RETURN_IF_ERROR(target.FillBounds(&run));
  const int64_t seed = absl::GetFlag(FLAGS_seed);
  ASSIGN_OR_RETURN(BenchPrompts prompts, target.MakePrompts(model, absl::GetFlag(FLAGS_prompt_file),
                                                            seed < 0 ? kSeed : seed));

  // As many threads as the service may run at once; one that we did not start may use every CPU.
  // Of GPUs the service has told it.
  std::optional<PeakMeter> meter;
  if (run.bounds.devices == 0) {
    const int cpus = AvailableCpus();
    meter.emplace(threads > 0 ? std::min(threads, cpus) : cpus);
    run.bounds.peak_threads = meter->threads();
    run.bounds.peak_instruction = meter->probe().instruction;
    run.bounds.peaks.emplace();
  }

  const auto cpu_clock = [&target] { return target.CpuSeconds(); };
  // Tokens may come in bursts, of a small model all at once, when this process was not run
  // meanwhile: by chance, hence tried again.
  constexpr int kTries = 5;
  const auto measure = [&](const BenchCase& what) {
    absl::StatusOr<BenchSample> sample;
    for (int i = 0; i < kTries; ++i) {
      sample = RunBenchCase(target.inference(), run.model, what, prompts, cpu_clock, stop);
      if (sample.ok() ? !sample->burst : !absl::IsFailedPrecondition(sample.status())) break;
    }
    return sample;
  };
  RETURN_IF_ERROR(measure({.kind = BenchCase::Kind::kPrefill}).status());  // warms up
  for (const BenchCase& what : options.cases) run.lines.push_back({what, {}});
  const size_t total = static_cast<size_t>(options.repeat) * run.lines.size();
  size_t done = 0;
  for (int i = 0; i < options.repeat; ++i) {
    if (meter) run.bounds.peaks->TakeBest(meter->Measure());
    for (BenchLine& line : run.lines) {
      progress.Phase(absl::StrCat(++done, " of ", total, ": ", line.what.Name()));
      ASSIGN_OR_RETURN(BenchSample sample, measure(line.what));
      line.samples.push_back(std::move(sample));
    }
  }
  progress.Clear();
  return run;
}

std::map<std::string, std::string> FlagsAsUsed(const Options& options) {
  const auto list = [](const std::vector<std::string>& words) { return absl::StrJoin(words, ","); };
  std::map<std::string, std::string> flags = {
      {"prefill", list(absl::GetFlag(FLAGS_prefill))},
      {"decode", absl::StrCat(absl::GetFlag(FLAGS_decode))},
      {"context", list(absl::GetFlag(FLAGS_context))},
      {"concurrent", list(absl::GetFlag(FLAGS_concurrent))},
      {"concurrent-context", absl::StrCat(absl::GetFlag(FLAGS_concurrent_context))},
      {"repeat", absl::StrCat(options.repeat)},
      {"seed", absl::StrCat(absl::GetFlag(FLAGS_seed) < 0 ? kSeed : absl::GetFlag(FLAGS_seed))},
      {"prompt-file", absl::GetFlag(FLAGS_prompt_file)}};
  if (options.local) {
    const auto local = LocalServiceOptionsFromFlags(options.model);
    flags["model"] = options.model;
    flags["workers"] = absl::StrCat(local->workers);
    flags["threads"] = absl::StrCat(local->threads);
    flags["activations"] = local->activations;
    flags["kv-cache-dtype"] = local->kv_cache_dtype;
    flags["deterministic"] = local->deterministic ? "true" : "false";
    flags["coordinator-flags"] = list(local->coordinator_flags);
    flags["worker-flags"] = list(local->worker_flags);
  } else {
    flags["address"] = absl::GetFlag(FLAGS_address);
    flags["admin-address"] = absl::GetFlag(FLAGS_admin_address);
  }
  return flags;
}

int Run(const std::vector<std::string>& args) {
  absl::StatusOr<Options> options = OptionsFromFlags(args);
  if (!options.ok()) return UsageError("bench", std::string(options.status().message()));
  if (options->local) {
    const auto local = LocalServiceOptionsFromFlags(options->model);
    if (!local.ok()) return UsageError("bench", std::string(local.status().message()));
  }
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  absl::StatusOr<BenchRun> run = RunAll(*options);
  if (!run.ok()) {
    if (interrupted) return 130;
    std::fprintf(stderr, "bitshard bench: %s\n", Describe(run.status()).c_str());
    return 1;
  }
  run->flags = FlagsAsUsed(*options);
  const std::string text = absl::GetFlag(FLAGS_json) ? BenchJson(*run) : BenchTable(*run);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (const std::string path = absl::GetFlag(FLAGS_json_file); !path.empty()) {
    std::ofstream file(path, std::ios::app);
    file << BenchJson(*run, /*indent=*/-1) << std::flush;
    if (!file) {
      std::fprintf(stderr, "bitshard bench: --json-file=%s: cannot be written\n", path.c_str());
      return 1;
    }
  }
  return 0;
}

const RegisterVerb kRegistered({
    .name = "bench",
    .summary = "measure a service, beside what the machine could do",
    .help =
        "bitshard bench [MODEL] [--flags]            measures the running service at --address\n"
        "bitshard bench --local MODEL [--flags]      starts a service of MODEL for the "
        "measurement\n"
        "bitshard bench --synthetic=CONFIG [--flags] the same of a model whose weights are made, "
        "not read\n\n"
        "Sends prompts as token ids (by a fixed generator, each used once), greedy and on over end "
        "tokens, and times the\n"
        "answers. Everything is measured --repeat times in turn; figures are medians.\n\n"
        "Lines:\n"
        "  prefill N             a prompt of N tokens and 1 token of answer: N / time to that "
        "token\n"
        "  decode N at C         N tokens after a prompt of C: only the time from the first token "
        "to the last counts\n"
        "  S x decode N at C     S sequences at once: tokens of all / the time in which all of "
        "them generate\n"
        "Columns:\n"
        "  tokens/s              by the clock; lowest-highest of the repeats beside it\n"
        "  per CPU s             tokens / CPU time of coordinator and workers (--local): other "
        "programs on the machine\n"
        "                        do not stretch it; with one thread compare this one\n"
        "  TTFT ms               from request to first token (median over the sequences)\n"
        "  gap p50, p99 ms       between tokens of a sequence, over all repeats\n"
        "  of read peak          bytes a step must read (weights, and the KV cache of the "
        "context) per second / what as\n"
        "                        many threads read from memory in the same run; by the clock / by "
        "CPU time\n"
        "  of int peak           2 x layer parameters x tokens per second / measured rate of "
        "integer multiply-adds\n"
        "                        (a16 multiplies twice, or adds twice and multiplies once: 50 to "
        "55 % is all it can have)\n"
        "  The last two are shares of what this machine can do: the service must run here. \"of "
        "read peak\" is printed for\n"
        "  decode lines, with --local, MODEL or --admin-address (which tell the bytes); \"of int "
        "peak\" with --local or MODEL\n"
        "  (which tell the parameters); else there is \"-\". The share by CPU time needs --local. "
        "On GPUs the read peak is that\n"
        "  of their data sheets, and there is no int peak.\n"
        "Lines under the table name the rows that cannot be right, and why: a busy machine that "
        "did not run this program\n"
        "in time, or a share above 100 %.\n\n"
        "  --prefill=N,N         lengths of prefill lines (512); empty = none\n"
        "  --decode=N            tokens of decode lines (64); 0 = none\n"
        "  --context=C,C         contexts of decode lines (0,2048)\n"
        "  --concurrent=S,S      numbers of sequences at once (16); empty = none\n"
        "  --concurrent-context=C   context of each of those (64)\n"
        "  --repeat=N            (3)\n"
        "  --prompt-file=FILE    cut prompts out of this text\n"
        "  --seed=S              of the generator of prompts (1)\n"
        "  --json                one JSON document: machine, model, flags, medians, every sample\n"
        "  --json-file=FILE      append that document to FILE too, as one line\n"
        "  --address=HOST:PORT   the running service (localhost:50051)\n"
        "  --admin-address=HOST:PORT   its admin port, for what it holds in memory\n"
        "  --model-name=NAME     when the service has several models\n"
        "With --synthetic:\n"
        "  CONFIG                a Hugging Face config.json, a folder that has one, or a known "
        "shape (llama-3.1-8b, qwen2.5-7b;\n"
        "                        a wrong name lists them). The workers make the weights, on a GPU "
        "in its own memory: no file is\n"
        "                        read or written, and the same config gives the same numbers "
        "everywhere. Answers mean nothing\n"
        "  --synthetic-bits=N    matrices of the layers as compressed-tensors of 2 to 8 bits, "
        "embedding and head unquantized;\n"
        "                        16: nothing quantized; without it as the config says\n"
        "  --synthetic-group=N   columns of a scale group (128); 0: one scale a row\n"
        "  --synthetic-zeros     with zero points\n"
        "  --synthetic-format=F  instead of these three: the layers' matrices in any format that "
        "checkpoints have (q4_0 .. q8_0,\n"
        "                        q2_k .. q6_k, \"ct_int4 group=32 scale=f16 asym\"; a wrong name "
        "lists them)\n"
        "  --synthetic-shard=I/N only what rank I of N would own, as a model of its own: one GPU's "
        "part of a larger model,\n"
        "                        without the sums over ranks\n"
        "With --local and --synthetic:\n"
        "  --workers=N --threads=N   worker processes (1), threads of each (its share of the "
        "cores)\n"
        "  --device, --activations, --kv-cache-dtype, --deterministic, --coordinator-flags, "
        "--worker-flags, --bin-dir   as `bitshard serve` has them\n"
        "\nExamples:\n"
        "  bitshard bench --local SmolLM2-135M-Instruct.Q4_1.gguf --threads=1\n"
        "  bitshard bench --address=localhost:50051 --concurrent=8,32 --prefill= --json\n"
        "  bitshard bench --synthetic=llama-3.1-70b --synthetic-bits=4 --synthetic-shard=0/8 "
        "--device=cuda\n",
    .starts_programs = true,
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
