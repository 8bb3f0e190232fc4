#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

#include "tests/fuzz/replay.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

TEST(TokenizerFuzz, NoInputCrashesTheParserOrWhatItBuilds) {
  for (const char* dialect : {"llama3", "qwen2", "deepseek"}) {
    std::ifstream file(GoldenFile(std::string("tokenizer/") + dialect + "/tokenizer.json"));
    std::stringstream bytes;
    bytes << file.rdbuf();
    ASSERT_FALSE(bytes.str().empty()) << dialect;
    ReplayWithMutations({bytes.str()}, 100, 1000);
  }
  const std::string small =
      R"({"added_tokens":[{"id":3,"content":"<e>","special":true}],"normalizer":{"type":"NFC"},)"
      R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"Split",)"
      R"("pattern":{"Regex":"l+|\\s"},"behavior":"Isolated"},{"type":"ByteLevel"}]},)"
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<e>"}},)"
      R"({"Sequence":{"id":"A"}}],"special_tokens":{"<e>":{"ids":[3]}}},"decoder":{"type":"ByteLevel"},)"
      R"("model":{"type":"BPE","vocab":{"l":0,"o":1,"lo":2},"merges":["l o"]}})";
  ReplayWithMutations({small}, 600, 20000);
}

}  // namespace
}  // namespace bitshard
