// Speed of every kernel that this machine can run, and what the machine can do at most. Decode (few
// rows) streams weights from memory, prefill (many rows) is bound by arithmetic: `share_of_bound`
// (bounds.h) says how near a kernel comes to what the machine reads or multiplies, measured in the
// same run. `Read` and `VnniPeak` show the peaks themselves; two-term activations (a16) take two of
// VnniPeak's multiply-adds a product, but for kernels that multiply pairs of columns: their
// additions bound them (linear_int_pairs_avx512.h), and they may come to 110 %.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/registry/elementwise.h"
#include "kernels/registry/linear.h"
#include "kernels/registry/linear_kernel.h"
#include "kernels/registry/machine_peak.h"
#include "tests/bench/kernels/bounds.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr uint64_t kRows = 1536, kCols = 576;    // SmolLM2's gate_proj
constexpr size_t kColdBytes = size_t{96} << 20;  // more than the caches hold
constexpr int64_t kColdRows = 16;                // up to these, weights come from memory

// Several copies of one matrix, walked in turn, so that each is cold again; one when it may stay
// warm. Kept for the benchmarks of the same matrix that follow.
const std::vector<PackedMatrix>& Copies(const PackedSpec& spec, bool cold) {
  static std::string kept;
  static std::vector<PackedMatrix> copies;
  if (kept != spec.Describe()) copies.clear();
  kept = spec.Describe();
  const size_t bytes = cold ? kColdBytes : 1;
  while (copies.size() * *PackedBytes(spec) < bytes) copies.push_back(RandomMatrix(spec, 1));
  return copies;
}

Need NeedOf(unsigned form, const PackedMatrix& w, bool cold, int64_t m) {
  Need need;
  if (cold) need.memory_bytes = static_cast<double>(w.bytes());
  const double products = static_cast<double>(m * w.rows() * w.cols());
  if (form == kFormF32) {
    need.fmas = products;
  } else {
    // 16-bit activations are two terms for a machine that multiplies bytes.
    const bool two_terms = form == kFormA16 && BestIsa() == Isa::kAvx512Vnni;
    need.int_macs = products * (two_terms ? 2 : 1);
  }
  return need;
}

void Linear(benchmark::State& state, const LinearKernel* kernel, PackedSpec spec,
            ActivationMode mode, int64_t segment_cols, int64_t m) {
  const bool cold = m <= kColdRows;
  const std::vector<PackedMatrix>& matrices = Copies(spec, cold);
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(m * spec.cols, 2);
  PreparedActivations prepared;
  prepared.Reserve(m, spec.cols, segment_cols);
  prepared.Prepare(x.data(), m, spec.cols, spec.cols, segment_cols, kernel->form, kernel->isa,
                   pool);
  std::vector<float> y(m * spec.rows);
  std::vector<int64_t> sums(m * spec.rows), poison(m);
  std::vector<BoundLinear> bound;
  for (const PackedMatrix& w : matrices) {
    bound.push_back(*BoundLinear::BindTo(*kernel, w, mode, segment_cols, 100));
    if (!cold) break;
  }
  size_t next = 0;
  const ShareOfBound share(pool.threads());
  for (auto _ : state) {
    const BoundLinear& linear = bound[next++ % bound.size()];
    if (segment_cols == 0) {
      linear.Run(prepared, y.data(), spec.rows, pool);
    } else {
      linear.RunSegments(prepared, sums.data(), spec.rows, poison.data(), pool);
    }
  }
  share.Report(state, NeedOf(kernel->form, matrices[0], cold, m));
  state.SetBytesProcessed(state.iterations() * matrices[0].bytes());
  state.counters["mac_per_second"] =
      benchmark::Counter(static_cast<double>(state.iterations() * m * spec.rows * spec.cols),
                         benchmark::Counter::kIsRate);
}

const PeakProbe& Probe() { return *KernelRegistry<PeakProbe>::Get().Fastest(BestIsa()); }

void Read(benchmark::State& state) {
  Buffer memory(kColdBytes);
  std::memset(memory.data(), 1, memory.bytes());  // pages of zeros may all be one
  for (auto _ : state) benchmark::DoNotOptimize(Probe().read(memory.data(), memory.bytes()));
  state.SetBytesProcessed(state.iterations() * kColdBytes);
}

void VnniPeak(benchmark::State& state) {
  constexpr uint64_t kRounds = 100'000;
  for (auto _ : state) benchmark::DoNotOptimize(Probe().multiply_add(kRounds));
  state.SetLabel(Probe().instruction);
  state.counters["mac_per_second"] = benchmark::Counter(
      static_cast<double>(state.iterations() * kRounds * Probe().multiply_adds_a_round),
      benchmark::Counter::kIsRate);
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

ActivationMode ModeOf(unsigned form) {
  if (form == kFormA16) return ActivationMode::kA16;
  return form == kFormA8 ? ActivationMode::kA8 : ActivationMode::kF32;
}

void RegisterLinear() {
  std::vector<std::pair<std::string, PackedSpec>> specs = {
      {"q4_1", Q4Spec(kRows, kCols)},
      {"w4_channel", IntSpec(kRows, kCols, {.bits = 4, .group_size = 0})},
      {"bf16", {.rows = kRows, .cols = kCols, .type = PackedSpec::Type::kBf16}},
      {"f16", {.rows = kRows, .cols = kCols, .type = PackedSpec::Type::kF16}},
      {"f32", {.rows = kRows, .cols = kCols, .type = PackedSpec::Type::kF32}},
  };
  for (int bits = 2; bits <= 8; ++bits) {  // groups of 32, f16 scales, symmetric
    specs.push_back({"w" + std::to_string(bits), IntSpec(kRows, kCols, {.bits = bits})});
  }
  for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
    if (!HasIsa(kernel->isa) || std::strncmp(kernel->name, "reference", 9) == 0) continue;
    const ActivationMode mode = ModeOf(kernel->form);
    for (const auto& [format, spec] : specs) {
      if (FormOf(spec, mode) != kernel->form) continue;
      if (spec.type != PackedSpec::Type::kInt && mode != ActivationMode::kF32) continue;
      if (!RefusalOf(*kernel, {.weight = &spec, .mode = mode, .segment_cols = 0}).empty()) continue;
      for (int64_t m : {1, 2, 4, 16, 64, 256}) {
        for (int64_t segment : {0, 64}) {
          const std::string name = std::string(kernel->name) + "/" + format +
                                   "/m=" + std::to_string(m) + (segment == 0 ? "" : "/segments");
          benchmark::RegisterBenchmark(name.c_str(), &Linear, kernel, spec, mode, segment, m);
        }
      }
    }
  }
}

void RegisterAll() {
  benchmark::RegisterBenchmark("Read", &Read);
  benchmark::RegisterBenchmark("VnniPeak", &VnniPeak);
  RegisterLinear();
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    const std::string suffix = "/" + std::string(IsaName(isa));
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
