// Runs a fuzz entry point without a fuzzer: over given inputs, all their short truncations, and a
// few thousand random changes of them. Deterministic; a crash names the input's number and the
// seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace bitshard {

// Each input as it is, cut at `truncations` places, and with `mutations` random changes.
void ReplayWithMutations(const std::vector<std::string>& inputs, int truncations, int mutations);

}  // namespace bitshard
