#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "tests/fuzz/replay.h"

namespace bitshard {
namespace {

TEST(OutputParserFuzz, NoAnswerCrashesAParserOrLosesAByte) {
  const std::vector<std::string> answers = {
      "<think>\nwhy\n</think>\n\nSo.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": [1, "
      "-2.5e3, \"\\u00e9\\ud83d\\ude00\", null]}}\n</tool_call>",
      "<tool_call>\n<function=f>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>",
      "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"n\": true}}; {\"name\": \"f\"}",
      "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdefgh1\"}, {\"id\": 5}]",
      "<think>a</think><response>b<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]</response>",
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<"
      "｜tool▁call▁end｜>",
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant "
      "to=functions.f<|channel|>commentary "
      "<|constrain|>json<|message|>{\"n\": 1}<|call|>",
  };
  for (size_t dialect = 0; dialect < answers.size(); ++dialect) {
    const std::string answer = std::string(1, static_cast<char>(dialect)) + answers[dialect];
    ReplayWithMutations({answer}, 2000, 4000);
  }
}

}  // namespace
}  // namespace bitshard
