// The launches that kernel_cases.h is made of: each makes its inputs, launches one kernel
// (attention, int8 activations and rotations two), and keeps what came out. Seeds follow each
// other, so the order of the calls is part of the results.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "kernels/registry/rope.h"
#include "kernels/tensor/kv_layout.h"
#include "kernels/tensor/packed_matrix.h"
#include "tests/gpu/kernel_cases.h"
#include "tests/kernels/cuda/linear_on_device.h"

namespace bitshard {

struct LinearCase {
  PackedSpec spec;
  int64_t m = 1;
  int64_t segment_cols = 0;
  bool deterministic = true;
  bool a8 = false;  // int8 activations
  // So many different rows, the others are the same again: what a host makes of a large matrix
  // takes long. A multiple of 16; 0: all differ.
  int64_t different_rows = 0;
};

struct AttentionCase {
  KvType type = KvType::kBf16;
  int kv_heads = 1, q_heads = 1, head_dim = 64;
  std::vector<int> contexts;  // of each sequence
  bool deterministic = true;
  bool all_attend = false;  // false: the newest token of each sequence
  int rotary_dim = 0;       // not 0: the append rotates too
};

// What linear kernels read, made in place of the numbers themselves.
struct CaseForm {
  enum class Kind : uint8_t { kNone, kHalf, kA8 } kind = Kind::kNone;
  int64_t segment_cols = 0;  // a multiple of 16
};

class CaseRunner {
 public:
  explicit CaseRunner(const CaseOptions& options) : options_(options) {}

  void Linear(const LinearCase& c);
  void Attention(const AttentionCase& c);
  void Norm(int64_t m, int64_t width, const CaseForm& form = {}, bool sum = false);
  void Prepare(int64_t m, int64_t cols, int64_t segment_cols);
  void Gated(int64_t m, int64_t width, bool gelu, const CaseForm& form = {});
  void Sum(int64_t m, int64_t width, bool progress = false);
  void Add(int64_t m, int64_t width);
  void GatherRows(int64_t rows, int64_t width);
  void Gather(const PackedSpec& spec);
  void Rotate(int heads, int head_dim, RopeConfig::Pairing pairing);
  void Scan(int64_t m, int64_t count);  // and the sums of masses
  void Synthetic(const PackedSpec& spec);

  std::vector<CaseOutput> Take() { return std::move(outputs_); }

 private:
  uint32_t NextSeed() { return ++seed_; }
  void Launch(const std::string& name, absl::FunctionRef<absl::Status()> launch);
  // What the last launch made.
  void Keep(const std::string& name, CaseOutput::Kind kind, const DeviceBuffer& buffer,
            size_t bytes);
  void KeepNumbers(const std::string& name, absl::FunctionRef<std::vector<float>()> numbers);

  const CaseOptions options_;
  TestGpu& gpu_ = TestGpu::Get();
  uint32_t seed_ = 0;
  std::string error_;  // of the last launch
  std::vector<CaseOutput> outputs_;
};

}  // namespace bitshard
