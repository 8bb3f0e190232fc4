#include "kernels/base/cpu_features.h"

#include <string>

namespace bitshard {
namespace {

IsaReport Probe() {
  IsaReport report;
#if defined(__x86_64__)
  __builtin_cpu_init();  // its answers include what the operating system saves
  std::string missing;
#define BITSHARD_NEED(feature)          \
  if (!__builtin_cpu_supports(feature)) \
  missing += std::string(missing.empty() ? "" : ", ") + (feature)
  BITSHARD_NEED("avx2");
  BITSHARD_NEED("fma");
  BITSHARD_NEED("f16c");
  if (!missing.empty()) {
    report.reasons.push_back("avx2: the CPU or the kernel lacks " + missing);
    report.reasons.push_back("avx512vnni: needs avx2");
    return report;
  }
  report.best = Isa::kAvx2;
  BITSHARD_NEED("avx512f");
  BITSHARD_NEED("avx512bw");
  BITSHARD_NEED("avx512dq");
  BITSHARD_NEED("avx512vl");
  BITSHARD_NEED("avx512vnni");
#undef BITSHARD_NEED
  if (!missing.empty()) {
    report.reasons.push_back("avx512vnni: the CPU or the kernel lacks " + missing);
    return report;
  }
  report.best = Isa::kAvx512Vnni;
#else
  report.reasons.push_back("avx2: not an x86-64 machine");
  report.reasons.push_back("avx512vnni: not an x86-64 machine");
#endif
  return report;
}

}  // namespace

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
  }
  return "unknown";
}

std::optional<Isa> ParseIsa(std::string_view name) {
  for (Isa isa : kAllIsas) {
    if (IsaName(isa) == name) return isa;
  }
  return std::nullopt;
}

bool AsksForLinesAhead() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return !__builtin_cpu_is("amdfam19h");
#else
  return true;
#endif
}

bool AddsBesideMultiplications() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amdfam19h");
#else
  return false;
#endif
}

const IsaReport& ProbeIsa() {
  static const IsaReport report = Probe();
  return report;
}

}  // namespace bitshard
