// The simulator's dice: SplitMix64, so that a seed means the same on every machine.
#pragma once

#include <cstdint>

namespace bitshard::sim {

inline uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed + 0x9E3779B97F4A7C15u)) {}

  uint64_t Next() { return Mix(state_ += 0x9E3779B97F4A7C15u); }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>((Next() >> 32) * n >> 32); }
  // Both ends included.
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(Next() % static_cast<uint64_t>(most - least + 1));
  }
  uint32_t Range(uint32_t least, uint32_t most) { return least + Below(most - least + 1); }
  bool Percent(uint32_t percent) { return Below(100) < percent; }

 private:
  uint64_t state_;
};

}  // namespace bitshard::sim
