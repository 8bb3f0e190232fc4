// Constrained requests through the engine with its threads: those that fill masks, too.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "tests/support/await.h"
#include "tests/support/fake_executor.h"
#include "tests/support/recording_sink.h"
#include "tests/support/words_grammar.h"

namespace bitshard {
namespace {

const std::vector<std::string> kWords = {"alpha", "alphabet", "!mark", "Upper case"};

// Its matchers wait at their first mask until the gate opens.
class SlowGrammar : public WordsGrammar {
 public:
  explicit SlowGrammar(std::shared_ptr<absl::Notification> gate)
      : WordsGrammar(kWords), gate_(std::move(gate)) {}
  std::unique_ptr<TokenMatcher> NewMatcher(bool end_tokens) const override {
    return std::make_unique<Matcher>(end_tokens, gate_);
  }

 private:
  class Matcher : public WordsMatcher {
   public:
    Matcher(bool end_tokens, std::shared_ptr<absl::Notification> gate)
        : WordsMatcher(kWords, end_tokens), gate_(std::move(gate)) {}
    bool FillMask(std::string* mask) override {
      gate_->WaitForNotification();
      return WordsMatcher::FillMask(mask);
    }
    const std::shared_ptr<absl::Notification> gate_;
  };
  const std::shared_ptr<absl::Notification> gate_;
};

class ConstrainedEngineTest : public testing::Test {
 protected:
  ConstrainedEngineTest() {
    FakeExecutor::Options group;
    group.worker.vocab_size = kByteTokenizerVocab;
    executor_ = std::make_unique<FakeExecutor>(group);
    engine_ = Engine::Create(Engine::Options(), tokenizer_.get(), executor_.get(), &metrics_);
    engine_->Start();
    AwaitTrue("a group that is ready",
              [this] { return engine_->Stats().group == EngineStats::GroupState::kReady; });
  }
  std::shared_ptr<RecordingSink> Send(int i, std::shared_ptr<const CompiledGrammar> grammar) {
    GenerateRequest request;
    request.request_id = absl::StrCat("r", i);
    request.prompt_tokens = {'a', 'b' + i % 20};
    request.max_tokens = 30;
    request.seed = static_cast<uint64_t>(i);
    request.ignore_eos = grammar == nullptr;
    request.grammar = std::move(grammar);
    auto sink = std::make_shared<RecordingSink>();
    const absl::StatusOr<RequestHandle> handle = engine_->Submit(std::move(request), sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return sink;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer();
  NullEngineMetrics metrics_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(ConstrainedEngineTest, ManyAtOnce) {
  const auto grammar = std::make_shared<const WordsGrammar>(kWords);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 200; ++i) sinks.push_back(Send(i, i % 4 == 3 ? nullptr : grammar));
  for (size_t i = 0; i < sinks.size(); ++i) {
    ASSERT_TRUE(sinks[i]->AwaitEnd().status.ok()) << sinks[i]->AwaitEnd().status;
    if (i % 4 == 3) continue;
    EXPECT_NE(std::find(kWords.begin(), kWords.end(), sinks[i]->text()), kWords.end())
        << sinks[i]->text();
  }
}

TEST_F(ConstrainedEngineTest, AMatcherThatHangsHoldsUpNobodyElse) {
  const auto gate = std::make_shared<absl::Notification>();
  const auto slow = std::make_shared<const SlowGrammar>(gate);
  // One fewer than the threads that fill masks.
  const auto stuck = Send(0, slow);
  stuck->AwaitTokens(1);
  const auto words = std::make_shared<const WordsGrammar>(kWords);
  for (int i = 1; i < 20; ++i) EXPECT_TRUE(Send(i, words)->AwaitEnd().status.ok());
  for (int i = 20; i < 40; ++i) EXPECT_TRUE(Send(i, nullptr)->AwaitEnd().status.ok());
  EXPECT_FALSE(stuck->ended());
  engine_->Abort("", "r0");
  EXPECT_EQ(stuck->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->Stats().blocks_used, 0u);
  gate->Notify();
}

TEST_F(ConstrainedEngineTest, StopsWhileMasksAreAwaited) {
  const auto gate = std::make_shared<absl::Notification>();
  const auto slow = std::make_shared<const SlowGrammar>(gate);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 10; ++i) sinks.push_back(Send(i, slow));
  sinks.front()->AwaitTokens(1);
  engine_->Stop();
  for (const auto& sink : sinks)
    EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kUnavailable);
  gate->Notify();
}

}  // namespace
}  // namespace bitshard
