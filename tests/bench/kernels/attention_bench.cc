// Attention in SmolLM2's shape: 9 query heads, 3 kv heads of 64, 30 layers one after the other, so
// that the cache of a long context is cold. Decode streams it, prefill is bound by arithmetic;
// `share_of_bound` (bounds.h) says how near each comes to what the machine reads, or multiplies.
// `fma_per_second` of `fma` is the most that the vector units of a set of instructions do. One
// iteration is one layer.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/registry/attention.h"
#include "tests/bench/kernels/bounds.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr int kLayers = 30, kQHeads = 9, kKvHeads = 3, kHeadDim = 64;
constexpr int kQWidth = kQHeads * kHeadDim, kKvWidth = kKvHeads * kHeadDim;

void FmaPeak(benchmark::State& state, Isa isa) {
  alignas(64) float acc[256] = {};
  constexpr int kTimes = 10000;
  for (auto _ : state) {
    RunFmas(isa, acc, kTimes);
    benchmark::DoNotOptimize(acc);
  }
  state.counters["fma_per_second"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kTimes * FmasATime(isa),
                         benchmark::Counter::kIsRate);
}

struct Layers {
  AttentionConfig config;
  std::vector<uint32_t> blocks;
  Buffer cache;
  int64_t layer_bytes = 0;
};

Layers MakeLayers(KvType type, int layers, int64_t context) {
  Layers out;
  out.config.layout = {.type = type, .kv_heads = kKvHeads, .head_dim = kHeadDim};
  out.config.q_heads = kQHeads;
  out.config.kv_head_of_q = {0, 0, 0, 1, 1, 1, 2, 2, 2};
  out.config.scale = 0.125f;
  for (int64_t i = 0; i < (context + 15) / 16; ++i) out.blocks.push_back(static_cast<uint32_t>(i));
  out.layer_bytes = static_cast<int64_t>(out.blocks.size()) * out.config.layout.block_bytes();
  out.cache = Buffer(static_cast<size_t>(layers * out.layer_bytes));
  return out;
}

void Attend(benchmark::State& state, KvType type, Isa isa, int64_t context, int64_t tokens,
            int layers, int threads) {
  Layers m = MakeLayers(type, layers, context);
  ThreadPool pool(threads);
  auto attention = BoundAttention::Bind(m.config, threads, isa);
  const std::vector<float> kv = RandomFloats(context * kKvWidth, 1),
                           q = RandomFloats(tokens * kQWidth, 2);
  const AttentionRow all{.blocks = m.blocks.data(), .start = 0, .tokens = context, .first_row = 0};
  for (int i = 0; i < layers; ++i) {
    attention->Append({&all, 1}, kv.data(), kv.data(), kKvWidth, m.cache.data() + i * m.layer_bytes,
                      pool);
  }
  const AttentionRow row{
      .blocks = m.blocks.data(), .start = context - tokens, .tokens = tokens, .first_row = 0};
  std::vector<float> out(tokens * kQWidth);
  int64_t layer = 0;
  const ShareOfBound share(threads);
  for (auto _ : state) {
    attention->Run({&row, 1}, q.data(), kQWidth, m.cache.data() + layer * m.layer_bytes, out.data(),
                   kQWidth, pool);
    layer = (layer + 1) % layers;
  }
  // Visible (query, position) pairs: each a product with K and one with V.
  const double pairs = static_cast<double>(tokens) * (context - tokens) +
                       static_cast<double>(tokens) * (tokens + 1) / 2;
  const double fmas = pairs * kQHeads * 2 * kHeadDim;
  // A prefill's few layers stay in the cache.
  share.Report(
      state, {.memory_bytes = tokens == 1 ? static_cast<double>(m.layer_bytes) : 0, .fmas = fmas});
  state.SetBytesProcessed(state.iterations() * m.layer_bytes);
  state.counters["fma_per_second"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * fmas, benchmark::Counter::kIsRate);
}

void Append(benchmark::State& state, KvType type, Isa isa, int64_t tokens) {
  constexpr int64_t kContext = 2048;
  Layers m = MakeLayers(type, kLayers, kContext);
  ThreadPool pool(1);
  auto attention = BoundAttention::Bind(m.config, 1, isa);
  const std::vector<float> kv = RandomFloats(tokens * kKvWidth, 1);
  const AttentionRow row{
      .blocks = m.blocks.data(), .start = kContext - 7 - tokens, .tokens = tokens, .first_row = 0};
  int64_t layer = 0;
  for (auto _ : state) {
    attention->Append({&row, 1}, kv.data(), kv.data(), kKvWidth,
                      m.cache.data() + layer * m.layer_bytes, pool);
    layer = (layer + 1) % kLayers;
  }
  state.SetItemsProcessed(state.iterations() * tokens);
}

const bool kRegistered = [] {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
    if (!HasIsa(isa)) continue;
    const std::string suffix = "/" + std::string(IsaName(isa));
    benchmark::RegisterBenchmark(("fma" + suffix).c_str(), &FmaPeak, isa);
    for (const KvType type : kAllKvTypes) {
      const auto name = [&](const std::string& what) {
        return "attention/" + what + "/" + KvTypeName(type) + suffix;
      };
      benchmark::RegisterBenchmark(name("decode/context=2048").c_str(), &Attend, type, isa, 2048, 1,
                                   kLayers, 1);
      benchmark::RegisterBenchmark(name("decode/context=2048/threads=2").c_str(), &Attend, type,
                                   isa, 2048, 1, kLayers, 2)
          ->UseRealTime();
      benchmark::RegisterBenchmark(name("prefill=512").c_str(), &Attend, type, isa, 512, 512, 4, 1);
      benchmark::RegisterBenchmark(name("append=1").c_str(), &Append, type, isa, 1);
      benchmark::RegisterBenchmark(name("append=512").c_str(), &Append, type, isa, 512);
    }
  }
  return true;
}();

}  // namespace
}  // namespace bitshard
