// The products of ptx/mma.cuh, from the fragments of a warp's 32 lanes. Included by the emulator's
// own sources.
#pragma once

#include "kernels/cuda/emu/state.h"

namespace bitshard::emu {

// m16n8k16. The accumulator and then the products in ascending k are added in double, the sum is
// rounded once to f32.
void MultiplyF16(Thread* lanes);
void MultiplyBf16(Thread* lanes);
// m16n8k32, u8 by s8. Sums wrap.
void MultiplyBytes(Thread* lanes);

}  // namespace bitshard::emu
