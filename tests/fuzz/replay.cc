#include "tests/fuzz/replay.h"

#include <cstdio>
#include <cstring>
#include <random>

namespace bitshard {
namespace {

constexpr uint32_t kSeed = 20241129;

// A copy in memory of exactly its size, so that a sanitizer sees reads beyond it.
void RunOne(const std::string& input) {
  const std::vector<uint8_t> copy(input.begin(), input.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

// What parsers stumble over: flipped bits, extreme numbers, repeated and missing pieces.
std::string Mutate(std::string input, std::mt19937& random) {
  const auto below = [&random](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t changes = 1 + below(4); changes > 0; --changes) {
    const size_t at = below(input.size());
    switch (below(6)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<char>(random());
        break;
      case 2: {
        static constexpr uint64_t kNumbers[] = {
            0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 1ull << 32, INT64_MAX, UINT64_MAX};
        const uint64_t number = kNumbers[below(std::size(kNumbers))];
        const size_t width = size_t{1} << below(4);
        if (input.size() >= at + width) std::memcpy(input.data() + at, &number, width);
        break;
      }
      case 3:
        input.erase(at, below(16));
        break;
      case 4:
        input.insert(at, input.substr(below(input.size()), below(32)));
        break;
      default:
        input.insert(at, std::string(below(4), "{}[]\",:0-9e\0\xff"[below(13)]));
    }
  }
  return input;
}

}  // namespace

void ReplayWithMutations(const std::vector<std::string>& inputs, int truncations, int mutations) {
  std::mt19937 random(kSeed);
  for (size_t i = 0; i < inputs.size(); ++i) {
    // Goes out only with a crash, or in the log of a test that passed.
    std::fprintf(stderr, "input %zu of %zu, %zu bytes, seed %u\n", i, inputs.size(),
                 inputs[i].size(), kSeed);
    RunOne(inputs[i]);
    for (int t = 0; t < truncations; ++t)
      RunOne(inputs[i].substr(0, random() % (inputs[i].size() + 1)));
    for (int m = 0; m < mutations; ++m) RunOne(Mutate(inputs[i], random));
  }
}

}  // namespace bitshard
