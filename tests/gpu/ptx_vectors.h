// Every wrapper of kernels/cuda/ptx, and the builtins whose meaning the emulator wrote down, on
// random registers: what a GPU makes of them against what the emulator makes of them.
#pragma once

#include <cstdint>
#include <string_view>

namespace bitshard {

// How a field of the output is compared. Whatever the kind, equal bits are equal.
enum class PtxCompare : uint8_t {
  kExact,     // bits
  kAbsolute,  // f32, within `tolerance`
  kRelative,  // f32, within `tolerance` of the larger
};

struct PtxField {
  std::string_view name;
  int words;  // 32 bits each
  PtxCompare compare;
  float tolerance;
};

// In the order of a lane's output. The tolerances are far above what rounding does and far below
// what a misread fragment layout does: the products are of numbers in [1, 2).
inline constexpr PtxField kPtxFields[] = {
    {"MmaF16", 4, PtxCompare::kAbsolute, 1e-3f},
    {"MmaBf16", 4, PtxCompare::kAbsolute, 1e-3f},
    {"MmaU8S8", 4, PtxCompare::kExact, 0},
    {"LdMatrixX4", 4, PtxCompare::kExact, 0},
    {"LdMatrixX4Trans", 4, PtxCompare::kExact, 0},
    {"CpAsync16", 4, PtxCompare::kExact, 0},
    {"CpAsyncWait<1>", 8, PtxCompare::kExact, 0},  // the older copy after it, then the newer one
    {"LoadStreaming", 7, PtxCompare::kExact, 0},   // of 16, 8 and 4 bytes
    {"shuffles with width", 4, PtxCompare::kExact, 0},
    {"ballot", 1, PtxCompare::kExact, 0},
    {"WarpSum", 1, PtxCompare::kExact, 0},
    {"WarpMax", 1, PtxCompare::kExact, 0},
    {"byte_perm", 1, PtxCompare::kExact, 0},
    {"popc", 1, PtxCompare::kExact, 0},
    {"dp4a", 1, PtxCompare::kExact, 0},
    {"funnelshift_r", 1, PtxCompare::kExact, 0},
    {"HSub2", 1, PtxCompare::kExact, 0},
    {"HMul2", 1, PtxCompare::kExact, 0},
    {"HFma2", 1, PtxCompare::kExact, 0},
    {"CvtE4m3x2ToHalf2", 1, PtxCompare::kExact, 0},
    {"HalfToFloat", 1, PtxCompare::kExact, 0},
    {"HalfBits, Bf16Bits", 1, PtxCompare::kExact, 0},
    {"float2int", 2, PtxCompare::kExact, 0},
    {"float2ll, double2ll", 4, PtxCompare::kExact, 0},
    {"fmaf, fma, rintf", 4, PtxCompare::kExact, 0},
    {"fdiv, fsqrt, frcp", 3, PtxCompare::kExact, 0},
    {"rsqrtf", 1, PtxCompare::kRelative, 1e-5f},
    {"expf fast", 1, PtxCompare::kRelative, 1e-4f},
};

constexpr int PtxOutputWords() {
  int words = 0;
  for (const PtxField& field : kPtxFields) words += field.words;
  return words;
}
inline constexpr int kPtxInputWords = 16;  // random, a lane

// in[warps * 32][kPtxInputWords] and out[warps * 32][PtxOutputWords()] on the device. `stream` is
// the device's own (DeviceStream::native). Returns a CUDA error code, 0 for success.
int LaunchPtxVectors(const uint32_t* in, uint32_t* out, int warps, void* stream);

// The same for ptx/wgmma.cuh, which is of sm_90a alone: in[blocks][kWgmmaVectorInputWords],
// out[blocks][kWgmmaVectorOutputWords], all f32.
inline constexpr PtxField kWgmmaField = {"WgmmaF16", 1, PtxCompare::kAbsolute, 4e-3f};
inline constexpr int kWgmmaVectorInputWords = 128 * 48;
inline constexpr int kWgmmaVectorOutputWords = 128 * 128;
int LaunchWgmmaVectors(const uint32_t* in, uint32_t* out, int blocks, void* stream);

}  // namespace bitshard
