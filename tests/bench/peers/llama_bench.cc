// The work of `bitshard bench`, done by llama.cpp's library: the same phases are timed, by the
// clock and by process CPU time, so that the figures can stand side by side. Not part of the build:
// against_llama_cpp.sh compiles it against the llama.cpp that it has built.
//
// usage: llama_bench MODEL.gguf THREADS [--flash-attn=auto|on|off] [--ubatch=N] [--unified] WORK...
//   WORK: prefill:N | decode:N:CONTEXT | concurrent:SEQUENCES:N:CONTEXT
// Prints one JSON line for each WORK. Greedy: the most probable token is fed back, as our service
// does.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "llama.h"

namespace {

constexpr int kBatchTokens = 512;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "llama_bench: %s\n", what.c_str());
  std::exit(1);
}

struct Clocks {
  double wall_s, cpu_s;
};

Clocks Now() {
  timespec cpu;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
  return {
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
      static_cast<double>(cpu.tv_sec) + 1e-9 * static_cast<double>(cpu.tv_nsec)};
}

struct Settings {
  std::string model;
  int threads = 1;
  llama_flash_attn_type flash_attn = LLAMA_FLASH_ATTN_TYPE_AUTO;
  uint32_t ubatch = 0;  // 0 = llama.cpp's default
  bool unified = false;
};

class Engine {
 public:
  Engine(llama_model* model, const Settings& settings, int sequences, int tokens) {
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_context_params params = llama_context_default_params();
    const int rounded = (tokens + 255) / 256 * 256;
    params.n_ctx = static_cast<uint32_t>(rounded * sequences);
    params.n_batch = kBatchTokens;
    if (settings.ubatch != 0) params.n_ubatch = settings.ubatch;
    params.n_seq_max = static_cast<uint32_t>(sequences);
    params.n_threads = params.n_threads_batch = settings.threads;
    params.flash_attn_type = settings.flash_attn;
    params.kv_unified = settings.unified;
    context_ = llama_init_from_model(model, params);
    if (context_ == nullptr) Fail("no context of this size");
    batch_ = llama_batch_init(kBatchTokens, 0, 1);
  }
  ~Engine() {
    llama_batch_free(batch_);
    llama_free(context_);
  }
  Engine(const Engine&) = delete;

  // Computes a prompt of any ids; returns the next token.
  int Prompt(int sequence, int tokens) {
    int next = 0;
    for (int begin = 0; begin < tokens; begin += kBatchTokens) {
      const int end = std::min(tokens, begin + kBatchTokens);
      for (int i = begin; i < end; ++i) Put(AnyToken(), i, sequence, i == tokens - 1);
      Decode();
      if (end == tokens) next = Best(batch_.n_tokens - 1);
    }
    return next;
  }

  // One token of each sequence, all at the same position; `tokens` become the next ones.
  void Step(std::vector<int>* tokens, int position) {
    batch_.n_tokens = 0;
    for (size_t i = 0; i < tokens->size(); ++i)
      Put((*tokens)[i], position, static_cast<int>(i), true);
    Decode();
    for (size_t i = 0; i < tokens->size(); ++i) (*tokens)[i] = Best(static_cast<int>(i));
  }

 private:
  int AnyToken() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state_ >> 33) % static_cast<uint64_t>(vocabulary_));
  }

  void Put(int token, int position, int sequence, bool logits) {
    if (fresh_) batch_.n_tokens = 0;
    fresh_ = false;
    const int i = batch_.n_tokens++;
    batch_.token[i] = token;
    batch_.pos[i] = position;
    batch_.n_seq_id[i] = 1;
    batch_.seq_id[i][0] = sequence;
    batch_.logits[i] = logits;
  }

  void Decode() {
    if (llama_decode(context_, batch_) != 0) Fail("llama_decode failed");
    llama_synchronize(context_);
    fresh_ = true;
  }

  int Best(int row) const {
    const float* logits = llama_get_logits_ith(context_, row);
    return static_cast<int>(std::max_element(logits, logits + vocabulary_) - logits);
  }

  int vocabulary_ = 0;
  llama_context* context_ = nullptr;
  llama_batch batch_;
  bool fresh_ = true;  // the batch has been computed
  uint64_t state_ = 1;
};

void Print(const std::string& work, uint64_t tokens, const Clocks& begin, const Clocks& end) {
  std::printf("{\"work\":\"%s\",\"tokens\":%llu,\"wall_s\":%.9f,\"cpu_s\":%.9f}\n", work.c_str(),
              static_cast<unsigned long long>(tokens), end.wall_s - begin.wall_s,
              end.cpu_s - begin.cpu_s);
  std::fflush(stdout);
}

void Run(llama_model* model, const Settings& settings, const std::string& work) {
  int a = 0, b = 0, c = 0;
  if (std::sscanf(work.c_str(), "prefill:%d", &a) == 1 && a > 0) {
    Engine engine(model, settings, 1, a + 1);
    const Clocks begin = Now();
    engine.Prompt(0, a);
    Print(work, static_cast<uint64_t>(a), begin, Now());
    return;
  }
  int sequences = 1;
  if (std::sscanf(work.c_str(), "concurrent:%d:%d:%d", &sequences, &a, &b) != 3 &&
      std::sscanf(work.c_str(), "decode:%d:%d", &a, &b) != 2)
    Fail("no such work: " + work);
  const int context = std::max(b, 1);
  if (sequences < 1 || a < 2) Fail("no such work: " + work);
  Engine engine(model, settings, sequences, context + a);
  std::vector<int> tokens;
  for (c = 0; c < sequences; ++c) tokens.push_back(engine.Prompt(c, context));
  // From the first token, which the prompt gave, to the last.
  const Clocks begin = Now();
  for (int i = 0; i < a - 1; ++i) engine.Step(&tokens, context + i);
  Print(work, static_cast<uint64_t>(a - 1) * static_cast<uint64_t>(sequences), begin, Now());
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  std::vector<std::string> works;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--flash-attn=auto") {
      settings.flash_attn = LLAMA_FLASH_ATTN_TYPE_AUTO;
    } else if (word == "--flash-attn=on") {
      settings.flash_attn = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    } else if (word == "--flash-attn=off") {
      settings.flash_attn = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    } else if (word.rfind("--ubatch=", 0) == 0) {
      settings.ubatch = static_cast<uint32_t>(std::atoi(word.c_str() + std::strlen("--ubatch=")));
    } else if (word == "--unified") {
      settings.unified = true;
    } else if (settings.model.empty()) {
      settings.model = word;
    } else if (works.empty() && word.find(':') == std::string::npos) {
      settings.threads = std::atoi(word.c_str());
    } else {
      works.push_back(word);
    }
  }
  if (works.empty() || settings.threads < 1)
    Fail("usage: llama_bench MODEL THREADS [flags] WORK...");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model =
      llama_model_load_from_file(settings.model.c_str(), llama_model_default_params());
  if (model == nullptr) Fail("cannot load " + settings.model);
  {
    // Warms up, as our benchmark does.
    Engine engine(model, settings, 1, 16);
    engine.Prompt(0, 8);
  }
  for (const std::string& work : works) Run(model, settings, work);
  llama_model_free(model);
  llama_backend_free();
  return 0;
}
