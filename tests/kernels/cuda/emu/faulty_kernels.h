// Small kernels with one planted fault each, and sound ones that resemble them. The lines to which
// the emulator must point carry "// FAULT: name" in faulty_kernels.cu.
#pragma once

#include <driver_types.h>
#include <string_view>

namespace bitshard::cuda {

// Blocks of 64 threads over 128 ints of which the first 64 are 0 and the others were never written.
// cudaErrorInvalidValue: no such kernel.
cudaError_t LaunchFaulty(std::string_view name, int* data, cudaStream_t stream);

}  // namespace bitshard::cuda
