// One launch of each kernel on random data with fixed seeds: for sanitizers and profilers, under
// which a launch takes long, and to lay a GPU's results beside the emulator's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bitshard {

enum class CaseSet : uint8_t {
  kSmall,        // every kernel, with tails
  kCalibration,  // launches whose counters are laid beside ncu's
  kLarge,        // shapes of a model's layers
};
// "small", "calibration", "large"; false for another name.
bool ParseCaseSet(const std::string& name, CaseSet* set);

struct CaseOutput {
  enum class Kind : uint8_t { kBytes, kFloats, kSums };  // kSums: int64, units of 2^-32

  std::string launch;  // one of a kind: "linear int4 ... 40x576 m=3"
  std::string error;   // "" when it was launched
  // Of kBytes beyond 64 KiB a checksum of each 4 KiB, so that files of results stay small.
  Kind kind = Kind::kBytes;
  std::vector<uint8_t> bytes;
  // |result - exact| / |exact| over all of it, of matrices with a reference; below 0: none was
  // computed. The bound is that of sums in f32.
  double reference_error = -1, reference_bound = 0;
};

// Around each launch, when everything before is over; the second when the launch is, too.
struct LaunchHooks {
  std::function<void(const std::string&launch)> before, after;
};

struct CaseOptions {
  LaunchHooks hooks;
  bool with_reference = false;
};

// On the device "cuda", number 0; dies when it does not open or has no memory.
std::vector<CaseOutput> RunCases(CaseSet set, const CaseOptions& options);

}  // namespace bitshard
