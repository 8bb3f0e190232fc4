// Bad flags are named as people type them, with what to write instead.

#include "kernels/base/command_line.h"

#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(int32_t, test_port, 1, "port of the test; 0 picks one");
ABSL_FLAG(double, test_ratio, 1, "");
ABSL_FLAG(bool, test_quick, false, "");
ABSL_FLAG(std::string, test_name, "", "");
ABSL_FLAG(absl::Duration, test_wait, absl::Seconds(1), "");

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Refusal(std::vector<const char*> words) {
  words.insert(words.begin(), "program");
  return std::string(CheckFlags(static_cast<int>(words.size()), words.data()).message());
}

TEST(CheckFlags, TakesWhatAbseilTakes) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"--test-port=5", "--test_ratio=0.5", "word", "-"},
        {"--test-quick", "--notest-quick", "--test-quick=false"},
        {"--test-name", "--no-such-flag"},  // a value
        {"--test-wait=30s", "-test-port=5"},
        {"--", "--no-such-flag"}}) {
    EXPECT_EQ(Refusal(words), "");
  }
}

TEST(CheckFlags, NamesTheFlagAsItIsTyped) {
  EXPECT_THAT(Refusal({"--test-port=5", "--no_such-flag=1"}), HasSubstr("no flag --no-such-flag"));
  EXPECT_THAT(Refusal({"-x"}), HasSubstr("no flag --x"));
  EXPECT_THAT(Refusal({"--notest-port"}), HasSubstr("no flag --notest-port"));
  EXPECT_THAT(Refusal({"--test_port=many"}), HasSubstr("--test-port=many: "));
  EXPECT_THAT(Refusal({"--test-port=99999999999"}), HasSubstr("too large"));
  EXPECT_THAT(Refusal({"--test-ratio=much"}), HasSubstr("no number"));
  EXPECT_THAT(Refusal({"--test-quick=maybe"}), HasSubstr("true or false"));
  EXPECT_THAT(Refusal({"--test-port"}), HasSubstr("--test-port needs a value"));
}

TEST(CheckFlags, ATimeWithoutAUnitGetsOne) {
  EXPECT_THAT(Refusal({"--test-wait=30"}), HasSubstr("write 30s"));
  EXPECT_THAT(Refusal({"--test-wait", "0.5"}), HasSubstr("write 0.5s"));
  EXPECT_THAT(Refusal({"--test-wait=soon"}), HasSubstr("write 30s"));
}

TEST(HelpText, NamesTheFlagsOfItsFileAsTheyAreTypedWithTheirDefaults) {
  const std::string text = HelpText({"program", "1.2", "does this.", "command_line_test.cc"});
  EXPECT_THAT(text, HasSubstr("program: does this.\n"));
  EXPECT_THAT(text, HasSubstr("  --test-port=1\n      port of the test; 0 picks one\n"));
  EXPECT_THAT(text, HasSubstr("  --test-wait=1s\n"));
  EXPECT_THAT(text, Not(HasSubstr("flagfile")));
}

TEST(AnswerHelpDeathTest, EndsWithZeroWhenAskedAndElseDoesNothing) {
  const ProgramHelp help = {"program", "1.2", "does this.", "command_line_test.cc"};
  for (const char* word : {"--help", "-help", "-h", "--version"}) {
    const char* const argv[] = {"program", "--test-port=1", word};
    EXPECT_EXIT(AnswerHelp(help, 3, argv), ::testing::ExitedWithCode(0), "") << word;
  }
  const char* const argv[] = {"program", "--test-port=1", "--h", "--", "--help"};
  AnswerHelp(help, 5, argv);
}

TEST(ParseCommandLineDeathTest, EndsWithTwoAndNamesProgramAndHelp) {
  std::string program = "verb", flag = "--no-such-flag";
  char* argv[] = {program.data(), flag.data()};
  EXPECT_EXIT(ParseCommandLine("program verb", 2, argv), ::testing::ExitedWithCode(2),
              "program verb: there is no flag --no-such-flag\nTry: program verb --help");
}

TEST(ParseCommandLine, GivesBackWhatIsNoFlag) {
  std::string words[] = {"verb", "first", "--test-wait=5s", "--test-port", "7", "second"};
  char* argv[6];
  for (int i = 0; i < 6; ++i) argv[i] = words[i].data();
  EXPECT_THAT(ParseCommandLine("program", 6, argv), ElementsAre("first", "second"));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_wait), absl::Seconds(5));
  EXPECT_EQ(absl::GetFlag(FLAGS_test_port), 7);
}

}  // namespace
}  // namespace bitshard
