// What a bind says about its choice, for reports and for --require-kernels=fast.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/cpu_features.h"

namespace bitshard {

// A kernel that comes before the chosen one in the order of speed, and why it does not run.
struct RefusedKernel {
  std::string kernel;
  std::string reason;
};

struct KernelChoice {
  std::string format;  // packed form of the weights, or what the cache holds; "" when neither
  std::string kernel;
  std::string activations;  // "a16", "a8", "f32"; "" when there is no such choice
  Isa isa = Isa::kScalar;
  std::vector<RefusedKernel> refused;
};

// The reference kernels are there to be right; a scalar one is what a machine without more can do.
inline bool IsReference(std::string_view kernel) { return kernel.substr(0, 10) == "reference/"; }
inline bool IsFallback(std::string_view kernel, Isa isa) {
  return IsReference(kernel) || (isa == Isa::kScalar && BestIsa() != Isa::kScalar);
}
inline bool IsFallback(const KernelChoice& choice) { return IsFallback(choice.kernel, choice.isa); }

// "a: why; b: why".
inline std::string RefusalText(const std::vector<RefusedKernel>& refused) {
  std::string text;
  for (const RefusedKernel& one : refused) {
    text += (text.empty() ? "" : "; ") + one.kernel + ": " + one.reason;
  }
  return text;
}

}  // namespace bitshard
