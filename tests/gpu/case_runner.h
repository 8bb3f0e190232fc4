// The launches that kernel_cases.h is made of: each makes its inputs, launches one kernel
// (attention and int8 activations two), and keeps what came out. Seeds follow each other, so the
// order of the calls is part of the results.
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
};

struct AttentionCase {
  KvType type = KvType::kBf16;
  int kv_heads = 1, q_heads = 1, head_dim = 64;
  std::vector<int> contexts;  // of each sequence; the newest token attends
  bool deterministic = true;
};

class CaseRunner {
 public:
  explicit CaseRunner(const CaseOptions& options) : options_(options) {}

  void Linear(const LinearCase& c);
  void Attention(const AttentionCase& c);
  void Norm(int64_t m, int64_t width);
  void Prepare(int64_t m, int64_t cols, int64_t segment_cols);
  void Gated(int64_t m, int64_t width, bool gelu);
  void Sum(int64_t m, int64_t width);
  void Add(int64_t m, int64_t width);
  void GatherRows(int64_t rows, int64_t width);
  void Gather(const PackedSpec& spec);
  void Rotate(int heads, int head_dim, RopeConfig::Pairing pairing);
  void Mark();
  void Scan(int64_t m, int64_t count);  // and the sums of masses
  void Synthetic(const PackedSpec& spec);

  std::vector<CaseOutput> Take() { return std::move(outputs_); }

 private:
  uint32_t NextSeed() { return ++seed_; }
  void Launch(const std::string& name, absl::FunctionRef<absl::Status()> launch);
  // What the last launch made.
  void Keep(const std::string& name, CaseOutput::Kind kind, const DeviceBuffer& buffer,
            size_t bytes);

  const CaseOptions options_;
  TestGpu& gpu_ = TestGpu::Get();
  uint32_t seed_ = 0;
  std::string error_;  // of the last launch
  std::vector<CaseOutput> outputs_;
};

}  // namespace bitshard
