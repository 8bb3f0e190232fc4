// Which instruction sets the kernels may use on this machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bitshard {

// Ordered: a machine that has one has all before it.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512Vnni = 2 };

inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni};

// "scalar", "avx2", "avx512vnni".
std::string_view IsaName(Isa isa);
std::optional<Isa> ParseIsa(std::string_view name);

// What the CPU and the operating system offer; `reasons` has one line for every set that was
// refused, e.g. "avx512vnni: the CPU lacks avx512_vnni".
struct IsaReport {
  Isa best = Isa::kScalar;
  std::vector<std::string> reasons;
};
const IsaReport& ProbeIsa();

inline Isa BestIsa() { return ProbeIsa().best; }
inline bool HasIsa(Isa isa) { return isa <= BestIsa(); }

// Whether kernels that stream weights from memory ask for lines ahead of their use. AMD's family
// 19h (Zen 3 and 4) follows such a stream by itself, and requests of a kernel's own take the places
// in which its misses wait.
bool AsksForLinesAhead();

// Whether two additions in place of a multiplication pay for vectors of 512 bits: Zen 4 adds in all
// four pipes and multiplies in two of them, Intel's cores have two for both. Not measured on Zen 5.
bool AddsBesideMultiplications();

}  // namespace bitshard
