// Status events: what a caller hears while no tokens come, and that the others hear nothing.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/coordinator/engine/core_harness.h"

namespace bitshard {
namespace {

using State = RequestStatus::State;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

FakeExecutor::Options Group(uint32_t blocks, uint32_t slots) {
  FakeExecutor::Options group;
  group.group.cache_blocks = blocks;
  group.group.block_tokens = 4;
  group.group.max_slots = slots;
  return group;
}

GenerateRequest Watched(const std::string& prompt, uint32_t max_tokens) {
  GenerateRequest request = Request(prompt, max_tokens);
  request.status_events = true;
  return request;
}

std::vector<State> States(const RecordingSink& sink) {
  std::vector<State> states;
  for (const RequestStatus& status : sink.statuses()) {
    if (states.empty() || states.back() != status.state) states.push_back(status.state);
  }
  return states;
}

RequestStatus Prefill(uint32_t computed, uint32_t total) {
  return {.state = State::kPrefill, .computed = computed, .total = total};
}

TEST(StatusEvents, APromptIsComputedPieceByPiece) {
  Engine::Options options;
  options.token_budget = 8;
  options.async_depth = 1;
  CoreHarness engine(options, Group(64, 4));
  engine.MakeReady();
  const auto sink = engine.Send(Watched(std::string(20, 'p'), 3));
  engine.StepUntilIdle();
  EXPECT_THAT(sink->statuses(), ElementsAre(Prefill(0, 20), Prefill(8, 20), Prefill(16, 20)));
  // The same again comes out of the cache, all but the last block.
  const auto again = engine.Send(Watched(std::string(20, 'p'), 3));
  engine.StepUntilIdle();
  EXPECT_THAT(again->statuses(), ElementsAre(Prefill(16, 20)));
}

TEST(StatusEvents, WhoWaitsHearsHowManyAreInFront) {
  Engine::Options options;
  options.async_depth = 1;
  CoreHarness engine(options, Group(256, 1));
  engine.MakeReady();
  const auto running = engine.Send(Watched("a", 20));
  const auto silent = engine.Send(Request("b", 5));
  const auto second = engine.Send(Watched("c", 5));
  const auto third = engine.Send(Watched("d", 5));
  const auto urgent = [&] {
    GenerateRequest request = Watched("e", 5);
    request.priority = -1;
    return engine.Send(request);
  }();
  const auto ahead = [](const std::shared_ptr<RecordingSink>& sink) {
    EXPECT_FALSE(sink->statuses().empty());
    EXPECT_EQ(sink->statuses().back().state, State::kQueued);
    return sink->statuses().back().ahead;
  };
  EXPECT_EQ(ahead(second), 1u);
  EXPECT_EQ(ahead(third), 2u);
  EXPECT_EQ(ahead(urgent), 0u);
  EXPECT_EQ(third->statuses().size(), 1u) << "that another one came is not told at once";
  EXPECT_FALSE(third->statuses().back().predicted_wait.has_value()) << "nothing was measured yet";

  for (int i = 0; i < 3; ++i) engine.Step();
  engine.Wait(absl::Seconds(1));
  EXPECT_EQ(ahead(third), 3u);
  ASSERT_TRUE(third->statuses().back().predicted_wait.has_value());
  const size_t heard = third->statuses().size();
  for (int i = 0; i < 10; ++i) engine.Step();
  EXPECT_EQ(third->statuses().size(), heard) << "nothing has changed";
  while (!urgent->ended()) {
    engine.Step();
    engine.Wait(absl::Milliseconds(1));
  }
  engine.Step();
  engine.Wait(absl::Seconds(1));
  EXPECT_LT(ahead(third), 3u);
  engine.StepUntilIdle();
  EXPECT_EQ(States(*third), (std::vector<State>{State::kQueued, State::kPrefill}));
  EXPECT_EQ(States(*running), std::vector<State>{State::kPrefill});
  EXPECT_THAT(silent->statuses(), IsEmpty());
}

TEST(StatusEvents, OfManyThatWaitEachHearsOfItsPlaceAtMostTwiceASecond) {
  Engine::Options options;
  CoreHarness engine(options, Group(512, 1));
  engine.MakeReady();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 50; ++i) sinks.push_back(engine.Send(Watched("p", 4)));
  const absl::Time begin = engine.now();
  while (engine.core().live() > 0) {
    engine.Step();
    engine.Wait(absl::Milliseconds(20));
  }
  const double seconds = absl::ToDoubleSeconds(engine.now() - begin);
  size_t most = 0;
  for (const auto& sink : sinks) most = std::max(most, sink->statuses().size());
  EXPECT_GT(most, seconds) << "positions change all the time";
  EXPECT_LE(static_cast<double>(most), 2 * seconds + 3);
}

TEST(StatusEvents, ThoseWhoComeToALongQueueHearOfTheirPlacesTogether) {
  Engine::Options options;
  options.async_depth = 1;
  CoreHarness engine(options, Group(512, 1));
  engine.MakeReady();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 200; ++i) sinks.push_back(engine.Send(Watched("p", 4)));
  const auto told = [&] {
    return std::count_if(sinks.begin(), sinks.end(),
                         [](const auto& sink) { return !sink->statuses().empty(); });
  };
  // The first ones at once; to put the queue in order for each that comes would cost its length
  // each time.
  EXPECT_GT(told(), 20);
  EXPECT_LT(told(), 100);
  EXPECT_LE(engine.core().NextWakeup(), engine.now() + absl::Milliseconds(100));
  engine.Wait(engine.core().NextWakeup() - engine.now());
  EXPECT_EQ(told(), 200);
  EXPECT_EQ(sinks.back()->statuses().back().ahead, 198u);
  EXPECT_GT(engine.core().NextWakeup(), engine.now()) << "there is no more to tell";
  engine.StepUntilIdle();
}

TEST(StatusEvents, WhoMakesRoomHearsItAndGoesOn) {
  Engine::Options options;
  CoreHarness engine(options, Group(/*blocks=*/8, /*slots=*/2));
  engine.MakeReady();
  const auto first = engine.Send(Watched("aaaa", 20));
  const auto pushed_out = engine.Send(Watched("bbbb", 20));
  engine.StepUntilIdle();
  ASSERT_GT(engine.metrics().preempted, 0u);
  EXPECT_EQ(States(*first), std::vector<State>{State::kPrefill});
  const std::vector<State> states = States(*pushed_out);
  ASSERT_GE(states.size(), 3u);
  EXPECT_EQ(states[states.size() - 2], State::kPreempted);
  EXPECT_EQ(states.back(), State::kPrefill);
  EXPECT_GT(pushed_out->statuses().back().total, 4u) << "the answer so far is computed again";
  EXPECT_EQ(pushed_out->tokens().size(), 20u);
}

TEST(StatusEvents, ALossIsToldToAllThatGoOnAfterIt) {
  Engine::Options options;
  options.fail_on_group_loss = false;
  CoreHarness engine(options, Group(64, 1));
  engine.MakeReady();
  const auto running = engine.Send(Watched("aaaa", 20));
  const auto waiting = engine.Send(Watched("bbbb", 5));
  for (int i = 0; i < 5; ++i) engine.Step();
  engine.executor().LoseGroup(absl::UnavailableError("rank 1 is gone"));
  engine.Advance();
  EXPECT_EQ(running->statuses().back().state, State::kRecovering);
  EXPECT_EQ(waiting->statuses().back().state, State::kRecovering);
  const auto late = engine.Send(Watched("cccc", 5));
  EXPECT_EQ(late->statuses().back().state, State::kRecovering);
  engine.MakeReady();
  EXPECT_EQ(running->statuses().back().state, State::kPrefill);
  EXPECT_EQ(waiting->statuses().back().state, State::kQueued);
  engine.StepUntilIdle();
  EXPECT_EQ(States(*running),
            (std::vector<State>{State::kPrefill, State::kRecovering, State::kPrefill}));
  EXPECT_EQ(States(*late),
            (std::vector<State>{State::kRecovering, State::kQueued, State::kPrefill}));
}

TEST(StatusEvents, OfAResumedRequestTheAnswerSoFarIsComputedToo) {
  CoreHarness engine(Engine::Options(), Group(64, 4));
  engine.MakeReady();
  GenerateRequest request = Watched("aaaa", 20);
  request.resumed = {'x', 'y', 'z'};
  const auto sink = engine.Send(request);
  engine.StepUntilIdle();
  EXPECT_THAT(sink->statuses(), ElementsAre(Prefill(0, 7)));
}

TEST(StatusEvents, OneOfSeveralChoicesThatWaitsIsNoNews) {
  CoreHarness engine(Engine::Options(), Group(/*blocks=*/10, /*slots=*/4));
  engine.MakeReady();
  GenerateRequest request = Watched("aaaa", 16);
  request.choices = 3;
  const auto sink = engine.Send(request);
  engine.StepUntilIdle();
  EXPECT_GT(engine.metrics().preempted, 0u);
  EXPECT_EQ(States(*sink), std::vector<State>{State::kPrefill});
}

}  // namespace
}  // namespace bitshard
