#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/coordinator/checkpoint/gguf_writer.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/fuzz/replay.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

std::string File(const std::string& json, size_t data_bytes) {
  return LittleEndian<uint64_t>(json.size()) + json + std::string(data_bytes, 'x');
}

TEST(SafetensorsFuzz, NoInputCrashesTheParser) {
  const std::string two =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
      R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]}})";
  ReplayWithMutations({File(two, 8), File("{}", 0), File("[[[[", 0), ""}, 200, 5000);
  ReplayWithMutations({ReadFile(GoldenModel("tiny-llama-q") + "/golden.safetensors")}, 100, 1000);
}

}  // namespace
}  // namespace bitshard
