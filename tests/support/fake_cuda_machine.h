// What the fake CUDA runtime (fake_cudart.h) tells of its machine, and CUDA's words for errors.
#pragma once

#include <driver_types.h>
#include <optional>

#include "tests/support/fake_cudart.h"

namespace bitshard::fake {

// Dies of a value that is none.
CudaMachine MachineFromEnvironment();
// nullopt: not known to the fake.
std::optional<int> AttributeOf(const CudaMachine& machine, cudaDeviceAttr attribute);
const char* ErrorName(cudaError_t error);
const char* ErrorText(cudaError_t error);

}  // namespace bitshard::fake
