// bitshard eval: what a format or a mode costs in quality. `kld` compares two models, or one model
// in two modes, on a text.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include <nlohmann/json.hpp>

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/tools/kld_statistics.h"
#include "coordinator/tools/local_service.h"
#include "coordinator/tools/progress.h"
#include "coordinator/tools/scored_model.h"
#include "coordinator/tools/verb.h"
#include "kernels/base/status_macros.h"

ABSL_DECLARE_FLAG(bool, json);  // of bench
ABSL_FLAG(std::string, base, "", "the model to compare with; empty = the tested one");
ABSL_FLAG(std::string, test, "", "the model to test");
ABSL_FLAG(std::string, base_activations, "f32", "a16, a8 or f32, of the base");
ABSL_FLAG(std::string, base_kv_cache_dtype, "f32", "bf16, f16, f32, int8 or fp8_e4m3, of the base");
ABSL_FLAG(int32_t, base_workers, 0, "worker processes of the base; 0 = as --workers");
ABSL_FLAG(std::string, text, "", "file with the text");
ABSL_FLAG(int32_t, ctx, 512, "tokens in a window");
ABSL_FLAG(int32_t, chunks, 0, "windows to compare at most; 0 = all of the text");

namespace bitshard {
namespace {

std::atomic<bool> interrupted{false};

struct Outcome {
  LocalServiceOptions base, test;
  std::string text;
  uint32_t context = 0;
  size_t windows = 0, tokens = 0;
  KldStatistics exact{KldStatistics::Rule::kExact};
  KldStatistics llama_cpp{KldStatistics::Rule::kLlamaCpp};
};

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in) return absl::NotFoundError(absl::StrCat("--text=", path, ": cannot be read"));
  return text;
}

// The text's tokens, and what the model puts before every text (BOS), if anything.
absl::Status Tokenize(ScoredModel& model, const std::string& text, std::vector<uint32_t>* tokens,
                      std::vector<uint32_t>* bos) {
  absl::StatusOr<std::vector<uint32_t>> all = model.Tokenize(text);
  if (!all.ok()) {
    return absl::Status(all.status().code(),
                        absl::StrCat("--text=", absl::GetFlag(FLAGS_text), ", ", text.size(),
                                     " bytes: ", all.status().message()));
  }
  *tokens = *std::move(all);
  ASSIGN_OR_RETURN(*bos, model.Tokenize(""));
  if (bos->size() > 1) {
    return absl::UnimplementedError(
        "the model's tokenizer puts more than one token around a text; windows are defined for BOS "
        "alone");
  }
  return absl::OkStatus();
}

absl::Status Compare(ScoredModel& base, ScoredModel& test, ProgressBar& progress,
                     Outcome* outcome) {
  std::vector<uint32_t> tokens, bos, base_tokens, base_bos;
  RETURN_IF_ERROR(Tokenize(test, outcome->text, &tokens, &bos));
  RETURN_IF_ERROR(Tokenize(base, outcome->text, &base_tokens, &base_bos));
  if (tokens != base_tokens || bos != base_bos ||
      base.model().vocabulary_size() != test.model().vocabulary_size()) {
    return absl::InvalidArgumentError(
        "the two models have different tokenizers: their distributions cannot be compared");
  }
  // The rules of llama-perplexity: windows without overlap, what is left at the end is dropped; BOS
  // takes the place of a window's first token; the second half of each window is scored.
  const size_t n = outcome->context;
  if (tokens.size() < 2 * n) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text has ", tokens.size(), " tokens; two windows of --ctx=", n, " are the least"));
  }
  outcome->tokens = tokens.size();
  outcome->windows = tokens.size() / n;
  if (const int chunks = absl::GetFlag(FLAGS_chunks); chunks > 0)
    outcome->windows = std::min<size_t>(outcome->windows, static_cast<size_t>(chunks));
  const size_t vocabulary = test.model().vocabulary_size();
  const uint32_t first = static_cast<uint32_t>(n / 2 + 1);
  std::vector<float> base_logits, test_logits;
  for (size_t w = 0; w < outcome->windows; ++w) {
    if (interrupted) return absl::CancelledError("interrupted");
    progress.Phase(absl::StrCat("window ", w + 1, " of ", outcome->windows));
    std::vector<uint32_t> window(tokens.begin() + static_cast<ptrdiff_t>(w * n),
                                 tokens.begin() + static_cast<ptrdiff_t>((w + 1) * n));
    if (!bos.empty()) window[0] = bos[0];
    RETURN_IF_ERROR(base.Logits(window, first, &base_logits));
    RETURN_IF_ERROR(test.Logits(window, first, &test_logits));
    for (size_t i = first; i < n; ++i) {
      const size_t row = (i - first) * vocabulary;
      const auto base_row = absl::MakeConstSpan(base_logits).subspan(row, vocabulary);
      const auto test_row = absl::MakeConstSpan(test_logits).subspan(row, vocabulary);
      outcome->exact.Add(base_row, test_row, window[i]);
      outcome->llama_cpp.Add(base_row, test_row, window[i]);
    }
  }
  return absl::OkStatus();
}

std::string Describe(const LocalServiceOptions& side) {
  return absl::StrCat(side.model, "  activations ", side.activations, ", KV cache ",
                      side.kv_cache_dtype, ", ", side.workers,
                      side.workers == 1 ? " worker" : " workers");
}

void PrintTable(const Outcome& o) {
  std::printf("base  %s\ntest  %s\n", Describe(o.base).c_str(), Describe(o.test).c_str());
  std::printf("%zu tokens, %zu windows of %u, %zu positions scored\n\n", o.tokens, o.windows,
              o.context, o.exact.count());
  std::printf("%-26s %21s   %21s\n", "", "exact", "as llama-perplexity");
  const auto line = [&](const char* name, auto get, double factor = 1, int digits = 6) {
    const Estimate a = get(o.exact), b = get(o.llama_cpp);
    std::printf("%-26s %11.*f ± %.*f   %11.*f ± %.*f\n", name, digits, factor * a.value, digits,
                factor * a.error, digits, factor * b.value, digits, factor * b.error);
  };
  const auto quantile = [&](const char* name, double fraction) {
    std::printf("%-26s %11.6f %12s %11.6f\n", name, o.exact.KldQuantile(fraction), "",
                o.llama_cpp.KldQuantile(fraction));
  };
  line("mean KLD", [](const KldStatistics& s) { return s.MeanKld(); });
  quantile("median KLD", 0.5);
  quantile("99 % KLD", 0.99);
  quantile("max KLD", 1);
  line(
      "same top token, %", [](const KldStatistics& s) { return s.SameTop(); }, 100, 3);
  line(
      "RMS change of p, %", [](const KldStatistics& s) { return s.RmsProbabilityChange(); }, 100,
      3);
  line("PPL base", [](const KldStatistics& s) { return s.PerplexityBase(); });
  line("PPL test", [](const KldStatistics& s) { return s.PerplexityTest(); });
  line("PPL test / base", [](const KldStatistics& s) { return s.PerplexityRatio(); });
  line("ln(PPL test / base)", [](const KldStatistics& s) { return s.LogPerplexityRatio(); });
  if (const double kld = o.exact.MeanKld().value; kld < 1e-3) {
    std::printf("\nmean KLD %.3g, max KLD %.3g nats\n", kld, o.exact.KldQuantile(1));
  }
}

nlohmann::ordered_json Json(const LocalServiceOptions& side) {
  return {{"model", side.model},
          {"activations", side.activations},
          {"kv_cache_dtype", side.kv_cache_dtype},
          {"workers", side.workers}};
}

nlohmann::ordered_json Json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"error", estimate.error}};
}

nlohmann::ordered_json Json(const KldStatistics& s) {
  return {{"mean_kld", Json(s.MeanKld())},
          {"median_kld", s.KldQuantile(0.5)},
          {"p99_kld", s.KldQuantile(0.99)},
          {"max_kld", s.KldQuantile(1)},
          {"same_top", Json(s.SameTop())},
          {"rms_probability_change", Json(s.RmsProbabilityChange())},
          {"ppl_base", Json(s.PerplexityBase())},
          {"ppl_test", Json(s.PerplexityTest())},
          {"ppl_ratio", Json(s.PerplexityRatio())},
          {"log_ppl_ratio", Json(s.LogPerplexityRatio())}};
}

void PrintJson(const Outcome& o) {
  const nlohmann::ordered_json json = {
      {"base", Json(o.base)},   {"test", Json(o.test)},
      {"context", o.context},   {"tokens", o.tokens},
      {"windows", o.windows},   {"positions", o.exact.count()},
      {"exact", Json(o.exact)}, {"as_llama_perplexity", Json(o.llama_cpp)},
  };
  std::printf("%s\n", json.dump(2).c_str());
}

// Before anything is started, from the headers.
absl::Status CheckContext(const std::string& model, uint32_t context) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(model));
  if (context <= checkpoint.config.context_length) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--ctx=", context, ": the context of ", model,
                                                 " is ", checkpoint.config.context_length,
                                                 " tokens; choose no more than that"));
}

absl::Status RunKld(Outcome* outcome) {
  const std::string test = absl::GetFlag(FLAGS_test), base = absl::GetFlag(FLAGS_base);
  ASSIGN_OR_RETURN(outcome->test, LocalServiceOptionsFromFlags(test));
  outcome->base = outcome->test;
  if (!base.empty()) outcome->base.model = base;
  outcome->base.activations = absl::GetFlag(FLAGS_base_activations);
  outcome->base.kv_cache_dtype = absl::GetFlag(FLAGS_base_kv_cache_dtype);
  if (const int workers = absl::GetFlag(FLAGS_base_workers); workers > 0)
    outcome->base.workers = workers;
  outcome->context = static_cast<uint32_t>(absl::GetFlag(FLAGS_ctx));
  ASSIGN_OR_RETURN(outcome->text, ReadText(absl::GetFlag(FLAGS_text)));
  for (const std::string& model : {outcome->base.model, outcome->test.model})
    RETURN_IF_ERROR(CheckContext(model, outcome->context));

  ProgressBar progress;
  const auto stopped = [] { return interrupted.load(); };
  progress.Phase("starting the base");
  ASSIGN_OR_RETURN(const std::unique_ptr<ScoredModel> base_model,
                   ScoredModel::Start(outcome->base, stopped));
  progress.Phase("starting the test");
  ASSIGN_OR_RETURN(const std::unique_ptr<ScoredModel> test_model,
                   ScoredModel::Start(outcome->test, stopped));
  const absl::Status status = Compare(*base_model, *test_model, progress, outcome);
  progress.Clear();
  return status;
}

int Run(const std::vector<std::string>& args) {
  if (args.size() != 1 || args[0] != "kld")
    return UsageError("eval", "knows one comparison: bitshard eval kld");
  if (absl::GetFlag(FLAGS_test).empty()) return UsageError("eval", "--test=MODEL is missing");
  if (absl::GetFlag(FLAGS_text).empty()) return UsageError("eval", "--text=FILE is missing");
  if (const int context = absl::GetFlag(FLAGS_ctx); context < 4 || context > 1 << 20)
    return UsageError("eval", "--ctx must be 4 to 1048576");
  if (const int workers = absl::GetFlag(FLAGS_base_workers);
      workers < 0 || workers > kMaxLocalWorkers) {
    return UsageError("eval", absl::StrCat("--base-workers must be 0 to ", kMaxLocalWorkers));
  }
  if (absl::GetFlag(FLAGS_chunks) < 0)
    return UsageError("eval", "--chunks must be 0 (all) or more");
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
  Outcome outcome;
  const absl::Status status = RunKld(&outcome);
  if (!status.ok()) {
    std::fprintf(stderr, "bitshard eval: %s\n", std::string(status.message()).c_str());
    return absl::IsCancelled(status) ? 130 : 1;
  }
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(outcome);
  } else {
    PrintTable(outcome);
  }
  return 0;
}

const RegisterVerb kRegistered({
    .name = "eval",
    .summary = "what a format or a mode costs in quality",
    .help =
        "bitshard eval kld --test=MODEL [--base=MODEL] --text=FILE [--flags]\n\n"
        "Kullback-Leibler divergence of the next-token distributions of one model from those of "
        "another, or of one\n"
        "mode from another of the same model, over a text; perplexity of both; share of equal most "
        "probable tokens.\n"
        "Windows, BOS and scored halves are those of llama-perplexity. Starts both on this "
        "machine, "
        "one service each.\n\n"
        "  --test=MODEL          what is tested\n"
        "  --activations=a16 --kv-cache-dtype=bf16   its mode\n"
        "  --base=MODEL          what it is compared with (the tested model)\n"
        "  --base-activations=f32 --base-kv-cache-dtype=f32   its mode\n"
        "  --text=FILE           the text, at most 8,000,000 bytes\n"
        "  --ctx=N               tokens in a window (512), no more than the model's context\n"
        "  --chunks=N            so many windows at most (0: all)\n"
        "  --workers=N --base-workers=N   worker processes (1; as --workers)\n"
        "  --threads, --device, --deterministic, --coordinator-flags, --worker-flags, --bin-dir   "
        "as "
        "`bitshard serve` has them\n"
        "  --json                one JSON document instead of the table\n"
        "\n\"exact\" takes all probabilities as they are. \"as llama-perplexity\" rounds those of "
        "the base to 16 bits and\n"
        "leaves out what is below e^-16, as llama-perplexity does: compare that column with its "
        "output.\n"
        "\nExamples:\n"
        "  bitshard eval kld --test=m.Q4_0.gguf --base=m.F16.gguf --text=wiki.test.raw "
        "--activations=f32 --kv-cache-dtype=f32\n"
        "  bitshard eval kld --test=m.gguf --activations=a16 --kv-cache-dtype=f32 "
        "--text=prose.txt\n",
    .starts_programs = true,
    .run = &Run,
});

}  // namespace
}  // namespace bitshard
