#include "tests/gpu/kernel_cases.h"

#include "tests/gpu/case_runner.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

PackedSpec Dense(PackedSpec::Type type, uint64_t rows, uint64_t cols) {
  return {.rows = rows, .cols = cols, .type = type};
}

// So many that a warp takes two row tiles at once on each card of at most 192 multiprocessors.
constexpr uint64_t kRowsForTwoTiles = 64 * 192;

// Each of the kernels of one width: cells of whole tiles, with one row tile a warp and two, of
// whole runs, in segments, and for many tokens.
void SmallWidth(CaseRunner& run, int bits) {
  const int64_t m = bits % 2 == 0 ? 3 : 16;
  run.Linear({IntSpec(40, 576, {bits, 64}), m});
  LinearCase two_tiles{.spec = IntSpec(kRowsForTwoTiles, 128, {bits, 128}), .m = 19 - m};
  two_tiles.different_rows = 16 * 7;
  run.Linear(two_tiles);
  run.Linear({IntSpec(33, 320, {bits, 32, ScaleKind::kBf16, ScaleOffset::kZero, 16}), 9, 64});
  run.Linear({IntSpec(24, 144, {bits, 32, ScaleKind::kF16, ScaleOffset::kMin, 16}), 257});
  // Int8 activations: pairs of runs for few tokens and for many, single runs, neither.
  LinearCase a8{.spec = IntSpec(40, 576, {bits, 64}), .m = 3 + bits, .a8 = true};
  run.Linear(a8);
  a8 = {.spec = IntSpec(24, 128, {bits, 64}), .m = 257, .a8 = true};
  run.Linear(a8);
  a8 = {.spec = IntSpec(24, 192, {bits, 16, ScaleKind::kSuperS8}), .m = 2, .a8 = true};
  run.Linear(a8);
  a8 = {.spec = IntSpec(24, 192, {bits, 48}), .m = 2, .a8 = true};
  run.Linear(a8);
  // No order of summation is kept.
  run.Linear({.spec = IntSpec(40, 192, {bits, 64}), .m = 256, .deterministic = false});
}

void SmallRows(CaseRunner& run) {
  using Form = CaseForm::Kind;
  for (const bool sum : {false, true}) {
    run.Norm(3, 1040, {}, sum);
    run.Norm(3, 576, {Form::kHalf}, sum);
    run.Norm(2, 576, {Form::kA8}, sum);
  }
  run.Prepare(3, 640, 0);
  run.Prepare(2, 200, 64);
  for (const bool gelu : {false, true}) {
    run.Gated(2, gelu ? 90 : 272, gelu);
    run.Gated(2, 320, gelu, {Form::kHalf});
    run.Gated(2, 320, gelu, {Form::kHalf, 64});
    run.Gated(2, 320, gelu, {Form::kA8, 64});
  }
  run.Sum(3, 600);
  run.Sum(2, 64, /*progress=*/true);
  run.Add(3, 77);
  run.GatherRows(9, 200);
  run.Gather(IntSpec(37, 150, {4, 32}));
  run.Gather(Dense(PackedSpec::Type::kBf16, 37, 150));
  run.Rotate(3, 64, RopeConfig::Pairing::kHalves);
  run.Rotate(3, 20, RopeConfig::Pairing::kInterleaved);
  run.Scan(3, 1000);
  run.Synthetic(IntSpec(37, 150, {5, 32}));
  run.Synthetic(IntSpec(37, 150, {5, 32, ScaleKind::kSuperU8Min}));
  run.Synthetic(IntSpec(37, 150, {4, 64, ScaleKind::kNested}));
  run.Synthetic(IntSpec(37, 150, {8, 128, ScaleKind::kBf16, ScaleOffset::kNone, 0, 128}));
  run.Synthetic(Dense(PackedSpec::Type::kBf16, 37, 150));
}

void Small(CaseRunner& run) {
  for (int bits = 2; bits <= 8; ++bits) SmallWidth(run, bits);
  run.Linear({IntSpec(24, 512, {4, 32, ScaleKind::kSuperU8Min}), 17});
  run.Linear({IntSpec(24, 512, {6, 16, ScaleKind::kSuperS8}), 2});
  run.Linear({IntSpec(24, 256, {4, 64, ScaleKind::kNested}), 1});
  run.Linear({IntSpec(24, 256, {4, 16, ScaleKind::kE4m3}), 1});
  run.Linear({IntSpec(20, 130, {4, 24}), 2});  // the plain kernel
  run.Linear({Dense(PackedSpec::Type::kF32, 24, 90), 2});
  run.Linear({Dense(PackedSpec::Type::kF16, 24, 90), 5});
  run.Linear({Dense(PackedSpec::Type::kBf16, 40, 320), 2});
  run.Linear({IntSpec(150, 90, {5, 32}), 130, 64});
  run.Linear({Dense(PackedSpec::Type::kBf16, 40, 90), 257});
  for (const KvType type : kAllKvTypes) {
    run.Attention({type, 2, 8, 32, {1, 16, 17, 300}});
    run.Attention({type, 1, 3, 22, {40, 257}});
    run.Attention({type, 2, 2, 32, {20}});
    AttentionCase rotated{type, 1, 5, 32, {35}};
    rotated.rotary_dim = 24;
    run.Attention(rotated);
  }
  for (const int head_dim : {64, 128}) {
    AttentionCase tiles{KvType::kBf16, 2, 8, head_dim, {100, 40}, false};
    tiles.all_attend = true;
    run.Attention(tiles);
  }
  LinearCase a8_many{.spec = IntSpec(150, 512, {4, 64}), .m = 130, .segment_cols = 128};
  a8_many.a8 = true;
  run.Linear(a8_many);
  SmallRows(run);
}

void Calibration(CaseRunner& run) {
  run.Linear({IntSpec(1024, 2048, {4, 128}), 1});
  LinearCase two_tiles{.spec = IntSpec(kRowsForTwoTiles, 512, {4, 128}), .m = 1};
  two_tiles.different_rows = 16 * 7;
  run.Linear(two_tiles);
  run.Linear({IntSpec(512, 2048, {4, 128}), 16});
  run.Linear({IntSpec(512, 2048, {5, 128}), 4});
  run.Linear({Dense(PackedSpec::Type::kBf16, 512, 1024), 1});
  run.Linear({IntSpec(256, 1024, {4, 128}), 256});
  AttentionCase attention{KvType::kBf16, 2, 8, 128, {512, 300}};
  attention.rotary_dim = 128;
  run.Attention(attention);
  run.Norm(16, 4096);
}

void Large(CaseRunner& run) {
  const auto linear = [&run](const PackedSpec& spec, int64_t m, int64_t segment_cols = 0) {
    LinearCase c{.spec = spec, .m = m, .segment_cols = segment_cols};
    c.different_rows = 16 * 7;
    run.Linear(c);
  };
  linear(IntSpec(4096, 14336, {4, 128}), 1);
  linear(IntSpec(14336, 4096, {5, 128}), 1);
  linear(IntSpec(4096, 4096, {8, 128}), 4);
  linear(IntSpec(4096, 14336, {3, 128}), 1, 64);
  linear(Dense(PackedSpec::Type::kBf16, 4096, 4096), 16);
  linear(IntSpec(1024, 4096, {4, 128}), 128);
  AttentionCase attention{KvType::kBf16, 8, 32, 128, {4096, 1000}};
  attention.rotary_dim = 128;
  run.Attention(attention);
}

}  // namespace

bool ParseCaseSet(const std::string& name, CaseSet* set) {
  if (name == "small") *set = CaseSet::kSmall;
  if (name == "calibration") *set = CaseSet::kCalibration;
  if (name == "large") *set = CaseSet::kLarge;
  return name == "small" || name == "calibration" || name == "large";
}

std::vector<CaseOutput> RunCases(CaseSet set, const CaseOptions& options) {
  CaseRunner runner(options);
  switch (set) {
    case CaseSet::kSmall:
      Small(runner);
      break;
    case CaseSet::kCalibration:
      Calibration(runner);
      break;
    case CaseSet::kLarge:
      Large(runner);
      break;
  }
  return runner.Take();
}

}  // namespace bitshard
