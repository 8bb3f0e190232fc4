#include "tests/gpu/kernel_cases.h"

#include "tests/gpu/case_runner.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

PackedSpec Dense(PackedSpec::Type type, uint64_t rows, uint64_t cols) {
  return {.rows = rows, .cols = cols, .type = type};
}

void Small(CaseRunner& run) {
  for (int bits = 2; bits <= 8; ++bits) {
    run.Linear({IntSpec(40, 576, {bits, 64}), 3});
    run.Linear({IntSpec(33, 320, {bits, 32, ScaleKind::kBf16, ScaleOffset::kZero, 16}), 9, 64});
  }
  run.Linear({IntSpec(24, 512, {4, 32, ScaleKind::kSuperU8Min}), 17});
  run.Linear({IntSpec(24, 512, {6, 16, ScaleKind::kSuperS8}), 2});
  run.Linear({IntSpec(24, 256, {4, 64, ScaleKind::kNested}), 1});
  run.Linear({IntSpec(24, 256, {4, 16, ScaleKind::kE4m3}), 1});
  run.Linear({IntSpec(20, 130, {4, 24}), 2});  // the plain kernel
  run.Linear({Dense(PackedSpec::Type::kF32, 24, 90), 2});
  run.Linear({Dense(PackedSpec::Type::kF16, 24, 90), 5});
  run.Linear({Dense(PackedSpec::Type::kBf16, 40, 320), 2});
  // Many tokens have a kernel of their own.
  run.Linear({IntSpec(24, 400, {4, 32, ScaleKind::kF16, ScaleOffset::kMin, 16}), 257});
  run.Linear({IntSpec(150, 90, {5, 32}), 130, 64});
  run.Linear({Dense(PackedSpec::Type::kBf16, 40, 90), 257});
  for (const KvType type : kAllKvTypes) {
    run.Attention({type, 2, 8, 32, {1, 16, 17, 300}});
    run.Attention({type, 1, 3, 22, {40, 257}});
  }
  run.Norm(3, 1040);
  run.Prepare(3, 640, 0);
  run.Prepare(2, 200, 64);
  run.Gated(2, 272, false);
  run.Gated(2, 90, true);
  run.Sum(3, 600);
  run.Add(3, 77);
  run.GatherRows(9, 200);
  run.Gather(IntSpec(37, 150, {4, 32}));
  run.Gather(Dense(PackedSpec::Type::kBf16, 37, 150));
  run.Rotate(3, 64, RopeConfig::Pairing::kHalves);
  run.Rotate(3, 20, RopeConfig::Pairing::kInterleaved);
  run.Mark();
  // Kernels that keep no order of summation, and int8 activations.
  LinearCase many{.spec = IntSpec(150, 512, {4, 128}), .m = 200};
  many.deterministic = false;
  run.Linear(many);
  for (int bits = 2; bits <= 8; ++bits) {
    LinearCase a8{.spec = IntSpec(40, 576, {bits, 64}), .m = 3 + bits};
    a8.a8 = true;
    run.Linear(a8);
  }
  LinearCase a8_many{.spec = IntSpec(150, 512, {4, 64}), .m = 130, .segment_cols = 128};
  a8_many.a8 = true;
  run.Linear(a8_many);
  AttentionCase tiles{KvType::kBf16, 2, 8, 64, {300, 40}};
  tiles.deterministic = false;
  run.Attention(tiles);
  run.Scan(3, 1000);
  run.Synthetic(IntSpec(37, 150, {5, 32}));
  run.Synthetic(Dense(PackedSpec::Type::kBf16, 37, 150));
}

void Calibration(CaseRunner& run) {
  run.Linear({IntSpec(1024, 2048, {4, 128}), 1});
  run.Linear({IntSpec(512, 2048, {4, 128}), 16});
  run.Linear({IntSpec(512, 2048, {5, 128}), 4});
  run.Linear({Dense(PackedSpec::Type::kBf16, 512, 1024), 1});
  run.Linear({IntSpec(256, 1024, {4, 128}), 256});
  run.Attention({KvType::kBf16, 2, 8, 128, {512, 300}});
  run.Norm(16, 4096);
}

void Large(CaseRunner& run) {
  run.Linear({IntSpec(4096, 14336, {4, 128}), 1});
  run.Linear({IntSpec(14336, 4096, {5, 128}), 1});
  run.Linear({IntSpec(4096, 4096, {8, 128}), 4});
  run.Linear({IntSpec(4096, 14336, {3, 128}), 1, 64});
  run.Linear({Dense(PackedSpec::Type::kBf16, 4096, 4096), 16});
  run.Linear({IntSpec(1024, 4096, {4, 128}), 128});
  run.Attention({KvType::kBf16, 8, 32, 128, {4096, 1000}});
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
