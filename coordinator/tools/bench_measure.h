// One timed piece of work of `bitshard bench`: requests to a service, and when their tokens came.
//
// Greedy, on over end tokens, prompts as token ids: every run does the same work. Each prompt
// occurs once, so that no cache of prefixes can help.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/inference.grpc.pb.h"

namespace bitshard {

struct BenchCase {
  enum class Kind {
    kPrefill,  // timed: from the request to the first token; the tokens of the prompt count
    kDecode,   // timed: while all sequences generate; the tokens generated meanwhile count
  };
  Kind kind = Kind::kDecode;
  uint32_t prompt_tokens = 1;  // of each sequence
  uint32_t output_tokens = 1;  // of each sequence
  uint32_t sequences = 1;      // at once

  // "prefill 512", "decode 64 at 2048", "16 x decode 64 at 64".
  std::string Name() const;
};

struct BenchSample {
  uint64_t tokens = 0;          // in the timed phase
  double wall_s = 0;            // of the timed phase
  std::optional<double> cpu_s;  // of the service's processes meanwhile
  std::vector<double> ttft_s;   // from request to first token, one a sequence
  // Tokens of a sequence came faster than the service says that it generated them: they had waited
  // for us. Rate and gaps are wrong then.
  bool burst = false;
  std::vector<double>
      gaps_s;  // between tokens in the timed phase; those of one message share theirs
};

// Token ids of prompts, by a fixed generator, or cut out of a text.
class BenchPrompts {
 public:
  // Any ids below `vocabulary_size`.
  BenchPrompts(uint32_t vocabulary_size, uint64_t seed)
      : vocabulary_size_(vocabulary_size), seed_(seed) {}
  // Pieces of these tokens, from a new place for each prompt. At least one.
  explicit BenchPrompts(std::vector<uint32_t> text) : text_(std::move(text)) {}

  // The next prompt.
  std::vector<uint32_t> Next(uint32_t tokens);

 private:
  const std::vector<uint32_t> text_;
  const uint32_t vocabulary_size_ = 0;
  const uint64_t seed_ = 0;
  uint64_t given_ = 0;
};

// CPU time that the service's processes have used, in seconds; null when it cannot be read.
using BenchCpuClock = std::function<std::optional<double>()>;

// Runs one case once. Cancelled when `interrupted` says so. An answer that is not as long as asked
// is INTERNAL.
absl::StatusOr<BenchSample> RunBenchCase(v1::Inference::Stub& stub, const std::string& model,
                                         const BenchCase& bench_case, BenchPrompts& prompts,
                                         const BenchCpuClock& cpu_clock,
                                         const std::function<bool()>& interrupted);

// What one sequence saw: when tokens came.
struct BenchArrival {
  double at_s = 0;  // of one clock for all sequences
  uint32_t tokens = 0;
  std::optional<double> cpu_s;
};
struct BenchStream {
  double sent_at_s = 0;
  std::optional<double> sent_cpu_s;
  std::vector<BenchArrival> arrivals;  // one a message, in order; none is empty
  // From the first token to the last by the service's own clock; 0 = it does not say.
  double decode_s = 0;
};

// The sample that the streams of one run make. FAILED_PRECONDITION when there was no time in which
// all sequences generated.
absl::StatusOr<BenchSample> SampleOf(const BenchCase& bench_case,
                                     const std::vector<BenchStream>& streams);

}  // namespace bitshard
