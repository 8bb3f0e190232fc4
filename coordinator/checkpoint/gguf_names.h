// GGUF tensor names -> canonical (Hugging Face) names.
#pragma once

#include <string>
#include <string_view>

namespace bitshard {

// Llama-like architectures. A name that is not in the table stays as it is: nobody asks for it, or
// its absence is told by the canonical name.
std::string CanonicalGgufName(std::string_view name);

// rope_freqs.weight: divisors of the rope frequencies. There is no Hugging Face name for it.
inline constexpr char kGgufRopeDivisors[] = "rope_freqs.weight";

}  // namespace bitshard
