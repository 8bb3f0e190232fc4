// What `bitshard bench` measured, and how it tells it: an aligned table, or one JSON document.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/tools/bench_measure.h"
#include "kernels/registry/machine_peak.h"

namespace bitshard {

// What bounds the work; parts that are not known are absent.
struct BenchBounds {
  // Bytes of weights that a step reads: all but an embedding table that only looks up rows.
  std::optional<uint64_t> step_weight_bytes;
  // Of the KV cache, for one token of context.
  std::optional<double> kv_bytes_a_token;
  // Weights that every token is multiplied with: the layers' matrices, without embedding and
  // lm_head.
  std::optional<uint64_t> layer_parameters;
  // Of this machine, with as many threads as the service has.
  std::optional<MachinePeaks> peaks;
  int peak_threads = 0;
  std::string peak_instruction;
  // Ranks that are GPUs; then `peaks` has only their reads, by their data sheets.
  int devices = 0;
};

struct BenchLine {
  BenchCase what;
  std::vector<BenchSample> samples;
};

// Medians over the samples, if not said otherwise. Absent: not known, or no such thing.
struct BenchFigures {
  double tokens_per_s = 0, lowest = 0, highest = 0;  // by the clock
  std::optional<double> tokens_per_cpu_s;
  double ttft_s = 0;
  std::optional<double> gap_p50_s, gap_p99_s;  // over the gaps of all samples
  // Of the measured peaks, 0 to 1: by the clock, and by CPU time.
  std::optional<double> read_share, read_share_cpu, int_share, int_share_cpu;
  // Why these figures cannot be right, in words; empty = nothing speaks against them.
  std::vector<std::string> doubts;
};
// REQUIRES: at least one sample.
BenchFigures FiguresOf(const BenchLine& line, const BenchBounds& bounds);

struct BenchRun {
  std::map<std::string, std::string> flags;  // as used
  std::string model, fingerprint, activations, kv_cache_type;
  std::string note;  // on the weights; "" = they are a checkpoint's
  int workers = 0;   // 0 = not known
  bool local = false;
  BenchBounds bounds;
  std::vector<BenchLine> lines;
};

// Both end with a newline. `indent`: of the JSON's levels; -1 = all in one line.
std::string BenchTable(const BenchRun& run);
std::string BenchJson(const BenchRun& run, int indent = 1);

// The middle of the values, or the mean of the two in the middle. REQUIRES: not empty.
double Median(std::vector<double> values);
// The least value that at least the share `p` of the values do not exceed. REQUIRES: not empty, 0 <
// p
// <= 1.
double Percentile(std::vector<double> values, double p);

}  // namespace bitshard
