// How fast one core packs stored weights into the canonical form: `bytes_per_second` of the source,
// from and to warm memory, for every format, beside a plain copy (`copy`) in the same run.
// `put_row` is the packing of codes alone. Bytes are those of the source, codes packed.
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/base/check.h"
#include "kernels/formats/format.h"
#include "kernels/tensor/p16x64.h"
#include "tests/kernels/formats/random_blocks.h"
#include "tests/kernels/formats/random_ct.h"

namespace bitshard {
namespace {

constexpr uint64_t kRows = 256, kCols = 4096;

void Copy(benchmark::State& state) {
  const std::vector<uint8_t> from(kRows * kCols / 2, 1);
  std::vector<uint8_t> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(from.size()));
}

void Pack(benchmark::State& state, const WeightFormat* format, std::vector<std::string> parts) {
  std::vector<absl::Span<const uint8_t>> spans;
  size_t bytes = 0;
  for (const std::string& part : parts) {
    spans.push_back({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
    bytes += part.size();
  }
  const MatrixSlice whole{0, kRows, 0, kCols};
  for (auto _ : state) {
    state.PauseTiming();  // a builder takes each row once; its memory comes zeroed
    PackedMatrixBuilder builder(format->Canonical(kCols, whole));
    state.ResumeTiming();
    CHECK_OK(format->ToCanonical(spans, kCols, whole, 0, builder));
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

void PutRowBench(benchmark::State& state, int bits) {
  std::vector<uint8_t> codes(kCols);
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>((7 * i) & ((1u << bits) - 1));
  std::vector<uint32_t> tiles(kCols / 64 * TileBytes(bits) / sizeof(uint32_t));
  int row = 0;
  for (auto _ : state) PutRow(tiles.data(), bits, row++ % 16, codes.data(), kCols / 64);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kCols) * bits / 8);
}

void Add(const WeightFormat* format, std::vector<std::string> parts) {
  std::string name = "pack/" + format->name();
  for (char& c : name) {
    if (c == ' ') c = ',';
  }
  benchmark::RegisterBenchmark(name.c_str(), &Pack, format, std::move(parts));
}

void RegisterAll() {
  benchmark::RegisterBenchmark("copy", &Copy);
  for (const WeightFormat* format : AllFormats()) {
    const auto* const blocks = dynamic_cast<const BlockFormat*>(format);
    if (blocks == nullptr) continue;
    const std::vector<uint8_t> bytes = RandomBlocks(*blocks, kRows, kCols, 1);
    Add(format, {std::string(bytes.begin(), bytes.end())});
  }
  std::mt19937_64 random(1);
  for (int bits = 2; bits <= 8; ++bits) {
    const std::string width = "ct_int" + std::to_string(bits);
    const bool odd = 32 % bits != 0;
    std::vector<std::string> names = {width + " group=32 scale=bf16 asym" + (odd ? " dense" : ""),
                                      width + " group=128 scale=bf16 sym" + (odd ? " dense" : "")};
    if (odd) names.push_back(width + " group=128 scale=bf16 sym padded");
    for (const std::string& name : names)
      Add(FindFormat(name), RandomCtParts(name, kRows, kCols, random, 1.0f));
  }
  for (int bits = 2; bits <= 8; ++bits) {
    benchmark::RegisterBenchmark(("put_row/" + std::to_string(bits) + "bits").c_str(), &PutRowBench,
                                 bits);
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
