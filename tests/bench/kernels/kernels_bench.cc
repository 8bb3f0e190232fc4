// Speed of every kernel that this machine can run. Decode (m = 1) streams weights from memory:
// `bytes_per_second` beside that of the `Read` benchmark, a plain read of as much memory in the
// same run, is the share of the bound. Prefill (m = 64) is bound by arithmetic: `mac_per_second`.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/registry/attention.h"
#include "kernels/registry/elementwise.h"
#include "kernels/registry/linear.h"
#include "kernels/registry/linear_kernel.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr uint64_t kRows = 1536, kCols = 576;    // SmolLM2's gate_proj
constexpr size_t kColdBytes = size_t{96} << 20;  // more than the caches hold

// Several copies of one matrix, walked in turn, so that each is cold again. Made once for all
// kernels.
const std::vector<PackedMatrix>& Copies(const PackedSpec& spec) {
  static std::map<std::string, std::vector<PackedMatrix>> all;
  std::vector<PackedMatrix>& copies = all[spec.Describe()];
  while (copies.size() * *PackedBytes(spec) < kColdBytes) copies.push_back(RandomMatrix(spec, 1));
  return copies;
}

void Linear(benchmark::State& state, const LinearKernel* kernel, PackedSpec spec,
            ActivationMode mode, int64_t segment_cols, int64_t m) {
  const std::vector<PackedMatrix>& matrices = Copies(spec);
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(m * spec.cols, 2);
  PreparedActivations prepared;
  prepared.Reserve(m, spec.cols, segment_cols);
  prepared.Prepare(x.data(), m, spec.cols, spec.cols, segment_cols, kFormF32 | kFormA16,
                   kernel->isa, pool);
  std::vector<float> y(m * spec.rows);
  std::vector<int64_t> sums(m * spec.rows), poison(m);
  std::vector<BoundLinear> bound;
  for (const PackedMatrix& w : matrices) {
    bound.push_back(*BoundLinear::BindTo(*kernel, w, mode, segment_cols, 100));
    if (m > 1) break;  // arithmetic: one warm matrix
  }
  size_t next = 0;
  for (auto _ : state) {
    const BoundLinear& linear = bound[next++ % bound.size()];
    if (segment_cols == 0) {
      linear.Run(prepared, y.data(), spec.rows, pool);
    } else {
      linear.RunSegments(prepared, sums.data(), spec.rows, poison.data(), pool);
    }
  }
  state.SetBytesProcessed(state.iterations() * matrices[0].bytes());
  state.counters["mac_per_second"] =
      benchmark::Counter(static_cast<double>(state.iterations() * m * spec.rows * spec.cols),
                         benchmark::Counter::kIsRate);
}

void Read(benchmark::State& state) {
  static const std::vector<uint64_t> memory(kColdBytes / 8, 1);
  uint64_t total = 0;
  for (auto _ : state) {
    uint64_t sums[8] = {};
    for (size_t i = 0; i < memory.size(); i += 8) {
      for (int j = 0; j < 8; ++j) sums[j] += memory[i + j];
    }
    for (uint64_t s : sums) total += s;
  }
  benchmark::DoNotOptimize(total);
  state.SetBytesProcessed(state.iterations() * kColdBytes);
}

// One layer of SmolLM2: 9 query heads, 3 kv heads of 64, at some context.
void Attention(benchmark::State& state, Isa isa, int64_t context, int64_t tokens) {
  AttentionConfig config;
  config.layout = {.type = KvType::kBf16, .kv_heads = 3, .head_dim = 64};
  config.q_heads = 9;
  config.kv_head_of_q = {0, 0, 0, 1, 1, 1, 2, 2, 2};
  config.scale = 0.125f;
  ThreadPool pool(1);
  auto attention = BoundAttention::Bind(config, 1, isa);
  std::vector<uint32_t> blocks((context + 15) / 16);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint32_t>(i);
  Buffer cache(blocks.size() * config.layout.block_bytes());
  const std::vector<float> kv = RandomFloats(context * 192, 1), q = RandomFloats(tokens * 576, 2);
  const AttentionRow all{.blocks = blocks.data(), .start = 0, .tokens = context, .first_row = 0};
  attention->Append({&all, 1}, kv.data(), kv.data(), 192, cache.data(), pool);
  const AttentionRow row{
      .blocks = blocks.data(), .start = context - tokens, .tokens = tokens, .first_row = 0};
  std::vector<float> out(tokens * 576);
  for (auto _ : state)
    attention->Run({&row, 1}, q.data(), 576, cache.data(), out.data(), 576, pool);
  state.SetBytesProcessed(state.iterations() * cache.bytes());
}

void GatedActBench(benchmark::State& state, Isa isa) {
  ThreadPool pool(1);
  const std::vector<float> gate = RandomFloats(1536, 1), up = RandomFloats(1536, 2);
  std::vector<float> out(1536);
  for (auto _ : state) {
    GatedAct(Activation::kSilu, gate.data(), 1536, up.data(), 1536, 1, 1536, out.data(), 1536, isa,
             pool);
  }
  state.SetBytesProcessed(state.iterations() * 3 * 1536 * 4);
}

void RmsNormBench(benchmark::State& state, Isa isa) {
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(576, 1), w = RandomFloats(576, 2);
  std::vector<float> y(576);
  for (auto _ : state) RmsNorm(x.data(), 576, w.data(), 1e-5f, 1, 576, y.data(), 576, isa, pool);
  state.SetBytesProcessed(state.iterations() * 3 * 576 * 4);
}

void PrepareBench(benchmark::State& state, Isa isa) {
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(1536, 1);
  PreparedActivations prepared;
  prepared.Reserve(1, 1536, 64);
  for (auto _ : state) prepared.Prepare(x.data(), 1, 1536, 1536, 64, kFormA16, isa, pool);
  state.SetBytesProcessed(state.iterations() * 1536 * 4);
}

void RegisterAll() {
  benchmark::RegisterBenchmark("read", &Read);
  const std::pair<const char*, PackedSpec> specs[] = {
      {"q4_1", Q4Spec(kRows, kCols)},
      {"q8_0", Q8Spec(kRows, kCols)},
      {"bf16", {.rows = kRows, .cols = kCols, .type = PackedSpec::Type::kBf16}},
      {"f32", {.rows = kRows, .cols = kCols, .type = PackedSpec::Type::kF32}},
  };
  for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
    if (!HasIsa(kernel->isa) || std::strncmp(kernel->name, "reference", 9) == 0) continue;
    const ActivationMode mode =
        kernel->form == kFormA16 ? ActivationMode::kA16 : ActivationMode::kF32;
    for (const auto& [format, spec] : specs) {
      if (FormOf(spec, mode) != kernel->form ||
          (mode == ActivationMode::kA16 && kernel->form != kFormA16))
        continue;
      if (!kernel->refuses({.weight = &spec, .mode = mode, .segment_cols = 0}).empty()) continue;
      for (int64_t m : {1, 64}) {
        for (int64_t segment : {0, 64}) {
          const std::string name = std::string(kernel->name) + "/" + format +
                                   "/m=" + std::to_string(m) + (segment == 0 ? "" : "/segments");
          benchmark::RegisterBenchmark(name.c_str(), &Linear, kernel, spec, mode, segment, m);
        }
      }
    }
  }
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    const std::string suffix = "/" + std::string(IsaName(isa));
    benchmark::RegisterBenchmark(("attention/decode/context=256" + suffix).c_str(), &Attention, isa,
                                 256, 1);
    benchmark::RegisterBenchmark(("attention/decode/context=2048" + suffix).c_str(), &Attention,
                                 isa, 2048, 1);
    benchmark::RegisterBenchmark(("attention/prefill=64/context=512" + suffix).c_str(), &Attention,
                                 isa, 512, 64);
    benchmark::RegisterBenchmark(("gated_act" + suffix).c_str(), &GatedActBench, isa);
    benchmark::RegisterBenchmark(("rms_norm" + suffix).c_str(), &RmsNormBench, isa);
    benchmark::RegisterBenchmark(("prepare" + suffix).c_str(), &PrepareBench, isa);
  }
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  bitshard::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
