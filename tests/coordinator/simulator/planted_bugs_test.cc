// The simulator finds bugs: each of these is one that a coordinator has had or might have.
// planted_bugs.py puts them into a copy of the sources that this test is linked with.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/coordinator/simulator/planted_bug.h"
#include "tests/coordinator/simulator/run_seeds.h"

namespace bitshard::sim {
namespace {

struct Planting {
  PlantedBug bug;
  const char* name;
  uint64_t seed;      // the first one that meets it
  const char* found;  // what the simulator says, or the CHECK that the scheduler dies of
};

constexpr uint64_t kSearched = 100'000;

constexpr Planting kPlantings[] = {
    {PlantedBug::kKnownTooEarly, "KnownTooEarly", 16, "more in the prefix cache than is computed"},
    {PlantedBug::kWholePromptCached, "WholePromptCached", 14, "requests stand still"},
    {PlantedBug::kLateOutputsCount, "LateOutputsCount", 19, "INTERNAL"},
    {PlantedBug::kLostWhenPreempted, "LostWhenPreempted", 19,
     "running [+] . waiting != . sequences"},
    {PlantedBug::kOldPlansStay, "OldPlansStay", 4, "no end"},
    {PlantedBug::kOutputsCostNothing, "OutputsCostNothing", 6, "a step of .* the budget is"},
    {PlantedBug::kSaltForgotten, "SaltForgotten", 2, "looks for its position . in block"},
    {PlantedBug::kSharersGoOn, "SharersGoOn", 25223, "nothing of its own was not finite"},
    {PlantedBug::kFirstIsPreempted, "FirstIsPreempted", 25, "which comes after it, goes on"},
    {PlantedBug::kFirstComeFirstServed, "FirstComeFirstServed", 2, "more than the other, at most"},
    {PlantedBug::kPlansStayOut, "PlansStayOut", 12, "requests stand still"},
    {PlantedBug::kLossNotTold, "LossNotTold", 4, "ready again without a loss"},
};

// Ends the process: with 1 and a report when the kept seed finds the bug.
[[noreturn]] void Find(const Planting& planting) {
  planted_bug = planting.bug;
  Met met;
  if (const std::optional<Finding> finding = RunSeeds(planting.seed, 1, &met)) {
    std::fprintf(stderr, "%s", finding->report.c_str());
    _exit(1);
  }
  // The simulator draws otherwise than when the seed was kept.
  const std::optional<Finding> other = RunSeeds(1, kSearched, &met);
  std::fprintf(stderr, "seed %llu does not meet this bug any more, %s\n",
               static_cast<unsigned long long>(planting.seed),
               other.has_value() ? ("keep this one: " + other->report).c_str() : "nor any other");
  _exit(0);
}

bool Found(int status) {
  return (WIFEXITED(status) && WEXITSTATUS(status) == 1) ||
         (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

class PlantedBugTest : public testing::TestWithParam<Planting> {};

TEST_P(PlantedBugTest, IsFoundByItsSeed) { EXPECT_EXIT(Find(GetParam()), Found, GetParam().found); }

// It is the bug that is found: without it the same seeds, in the same copy, show nothing.
TEST_P(PlantedBugTest, AndNothingIsFoundWithoutIt) {
  Met met;
  const std::optional<Finding> finding = RunSeeds(GetParam().seed, 1, &met);
  EXPECT_FALSE(finding.has_value()) << finding->report;
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedBugTest, testing::ValuesIn(kPlantings),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace bitshard::sim
