// How launches are emulated. A kernel must be right under every choice; tests run it under several.
// Options hold for the launches that start after SetOptions.
#pragma once

#include <cstdint>

namespace bitshard::emu {

// In what order the threads of a block take turns. A turn ends where the thread has to wait.
enum class Order : uint8_t {
  kForward,   // lane after lane, warp after warp
  kBackward,  // the other way round
  kShuffled,  // any thread that can go on, by `seed`
};

struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;
  // cp.async lands when it is issued (the earliest legal moment) instead of when it is waited for.
  bool copies_land_early = false;
  // Count sectors, banks and bytes. Only in check builds, where every access is seen.
  bool counters = true;
};

void SetOptions(const Options& options);
Options GetOptions();

// Whether the accesses of kernels are seen and checked: the program is linked with hooks.cc and its
// kernels are compiled for it.
bool ChecksAccesses();

}  // namespace bitshard::emu
