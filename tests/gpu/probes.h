// Kernels that only measure: products at the rate of mma.sync, and work of a chosen length.
#pragma once

#include <cstdint>

namespace bitshard {

// Each warp: `rounds` rounds of kMmaChains independent bf16 products of 16x8x16, all from
// registers, of random numbers with 4 digits. out[blocks * kMmaThreads], the sums, so that nothing
// is left out: `rounds` times those of one round, exactly up to kMmaExactRounds. Returns a CUDA
// error code, 0 for success.
inline constexpr int kMmaThreads = 256;
inline constexpr int kMmaChains = 8;
inline constexpr int64_t kMmaFlopsEach = 2 * 16 * 8 * 16;
inline constexpr int64_t kMmaExactRounds = 512;
int LaunchMmaRate(int blocks, int64_t rounds, float* out, void* stream);

// One thread: *word = ChainResult(*word, steps), one step after the other.
int LaunchChain(uint64_t* word, int64_t steps, void* stream);
// The same in log(steps) time.
uint64_t ChainResult(uint64_t word, int64_t steps);

}  // namespace bitshard
