// How many seeds a property test takes.
//
// A sanitizer makes such a test 40 times slower. It has one thread, so that fewer seeds show as
// much.
#pragma once

namespace bitshard {

constexpr int SeedCount(int plain) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kFewer = 7;
#else
  constexpr int kFewer = 1;
#endif
  return (plain + kFewer - 1) / kFewer;
}

}  // namespace bitshard
