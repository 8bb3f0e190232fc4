// Several choices over real gRPC: which message is whose, how each of them ends, what is counted.

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/engine/sampling.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RequestEnd Stopped(uint32_t tokens, uint32_t choice) {
  RequestEnd end = FakeEngine::End(tokens, choice);
  end.finish_reason = FinishReason::kStop;
  end.matched_token = kByteTokenizerEos;
  return end;
}

class ChoicesTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(); }

  static v1::GenerateRequest Several(uint32_t choices) {
    v1::GenerateRequest request = Request("hi");
    request.set_choices(choices);
    request.mutable_sampling()->set_seed(7);
    return request;
  }

  struct Choice {
    std::string text;
    uint32_t tokens = 0;
    v1::Finished finished;
  };
  struct Answer {
    std::map<uint32_t, Choice> choices;
    v1::Started started;
    v1::Usage usage;  // of the last message
    grpc::Status status;
  };
  // Reads all, and checks that each choice's pieces are contiguous and end with its end.
  static Answer ReadAll(grpc::ClientReader<v1::GenerateResponse>& stream) {
    Answer answer;
    v1::GenerateResponse response;
    bool first = true;
    while (stream.Read(&response)) {
      EXPECT_EQ(response.has_started(), first) << response.ShortDebugString();
      if (std::exchange(first, false)) answer.started = response.started();
      EXPECT_FALSE(answer.usage.has_prompt_tokens()) << "a message after the last one";
      Choice& choice = answer.choices[response.choice()];
      EXPECT_FALSE(choice.finished.has_reason()) << "a message after the choice's last one";
      EXPECT_EQ(response.token_index(), choice.tokens);
      choice.tokens += response.token_count();
      choice.text += response.text();
      if (response.has_finished()) choice.finished = response.finished();
      if (response.has_usage()) answer.usage = response.usage();
    }
    answer.status = stream.Finish();
    return answer;
  }
};

TEST_F(ChoicesTest, ComeInterleavedAndEndEachByItself) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Several(3));
  const auto live = engine_.Await();
  EXPECT_EQ(live.request.choices, 3u);
  EXPECT_EQ(live.request.seed, 7u);
  live.sink->OnAdmitted();
  live.sink->OnDelta(FakeEngine::Delta(0, "a", 0));
  live.sink->OnDelta(FakeEngine::Delta(0, "x", 2));
  live.sink->OnDelta(FakeEngine::Delta(1, "bc", 0));
  RequestEnd stop = Stopped(1, 2);
  stop.tail_text = "yz";
  live.sink->OnChoiceEnd(stop);
  live.sink->OnDelta(FakeEngine::Delta(0, "m", 1));
  live.sink->OnDelta(FakeEngine::Delta(3, "d", 0));
  live.sink->OnChoiceEnd(FakeEngine::End(4, 0));
  RequestEnd end = FakeEngine::End(1, 1);
  end.tail_text = "n";
  end.all.completion_tokens = 6;
  end.all.timings.decode = absl::Seconds(3);
  live.sink->OnEnd(end);

  const Answer answer = ReadAll(*stream);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.choices.size(), 3u);
  EXPECT_EQ(answer.choices.at(0).text, "abcd");
  EXPECT_EQ(answer.choices.at(1).text, "mn");
  EXPECT_EQ(answer.choices.at(2).text, "xyz");
  EXPECT_EQ(answer.choices.at(0).finished.reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.choices.at(2).finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(answer.choices.at(2).finished.token_id(), static_cast<uint32_t>(kByteTokenizerEos));
  EXPECT_EQ(answer.choices.at(0).finished.usage().completion_tokens(), 4u);
  EXPECT_EQ(answer.choices.at(1).finished.usage().completion_tokens(), 1u);
  EXPECT_EQ(answer.usage.prompt_tokens(), 3u) << "the prompt once";
  EXPECT_EQ(answer.usage.completion_tokens(), 6u);
  EXPECT_EQ(answer.usage.decode_time().seconds(), 3);
  EXPECT_EQ(answer.started.seed(), 7u);
  EXPECT_THAT(answer.started.choice_seeds(), ElementsAre(7u, ChoiceSeed(7, 1), ChoiceSeed(7, 2)));
  // The rule that proto/inference.proto tells.
  EXPECT_EQ(answer.started.choice_seeds(2), 7 + 2 * uint64_t{0x9E3779B97F4A7C15});
}

TEST_F(ChoicesTest, OneChoiceSaysWhatAllUsedTooAndNamesNoSeedsOfOthers) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  const auto live = engine_.Await();
  EXPECT_EQ(live.request.choices, 1u);
  live.sink->OnDelta(FakeEngine::Delta(0, "ab"));
  live.sink->OnEnd(FakeEngine::End(2));
  const Answer answer = ReadAll(*stream);
  EXPECT_EQ(answer.usage.completion_tokens(), 2u);
  EXPECT_EQ(answer.choices.at(0).finished.usage().completion_tokens(), 2u);
  EXPECT_EQ(answer.started.choice_seeds_size(), 0);
}

TEST_F(ChoicesTest, AnErrorAfterAChoicesEndEndsTheCall) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Several(2));
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  live.sink->OnDelta(FakeEngine::Delta(0, "ab", 1));
  live.sink->OnChoiceEnd(Stopped(2, 1));
  live.sink->OnDelta(FakeEngine::Delta(0, "c", 0));
  live.sink->OnEnd(FakeEngine::Failed(WorkerLostError(absl::UnavailableError("rank 1: killed"))));
  const Answer answer = ReadAll(*stream);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(answer.choices.at(1).finished.reason(), v1::FINISH_REASON_STOP)
      << "what had ended well stays so";
  EXPECT_EQ(answer.choices.at(0).text, "c");
  EXPECT_FALSE(answer.choices.at(0).finished.has_reason());
  EXPECT_FALSE(answer.usage.has_prompt_tokens());
}

TEST_F(ChoicesTest, ManyPiecesOfManyChoicesAreMergedWithoutGap) {
  constexpr uint32_t kChoices = 16, kTokens = 300;
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Several(kChoices));
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  std::map<uint32_t, std::string> sent;
  for (uint32_t i = 0; i < kTokens; ++i) {
    for (uint32_t choice = 0; choice < kChoices; ++choice) {
      if (i + choice > kTokens) continue;
      const std::string text(1, static_cast<char>('a' + (i * choice) % 26));
      live.sink->OnDelta(FakeEngine::Delta(i, text, choice));
      sent[choice] += text;
      if (i + choice == kTokens) live.sink->OnChoiceEnd(FakeEngine::End(i + 1, choice));
    }
  }
  live.sink->OnEnd(FakeEngine::End(kTokens, 0));
  const Answer answer = ReadAll(*stream);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.choices.size(), kChoices);
  for (const auto& [choice, text] : sent) {
    EXPECT_EQ(answer.choices.at(choice).text, text) << choice;
    EXPECT_EQ(answer.choices.at(choice).tokens, text.size());
    EXPECT_EQ(answer.choices.at(choice).finished.usage().completion_tokens(), text.size());
  }
  engine_.ForgetAll();
  metrics_.Await("OK /bitshard.v1.Inference/Generate", 1);
  EXPECT_EQ(metrics_.Seen("first_tokens"), 1) << "of the request, not of each choice";
  EXPECT_EQ(metrics_.Seen("without_token"), 0);
  EXPECT_EQ(metrics_.Seen("backlog"), 0);
}

TEST_F(ChoicesTest, CompleteGathersAll) {
  v1::CompleteRequest request;
  request.set_text("abc");
  request.set_choices(3);
  request.mutable_sampling()->set_seed(9);
  request.mutable_output()->set_token_ids(true);
  request.mutable_output()->set_top_logprobs(1);
  request.mutable_output()->set_prompt_logprobs(true);
  v1::CompleteResponse response;
  grpc::ClientContext context;
  std::thread engine([&] {
    const auto live = engine_.Await();
    live.sink->OnAdmitted();
    const auto delta = [](uint32_t index, const std::string& text, uint32_t choice) {
      TokenDelta delta = FakeEngine::Delta(index, text, choice);
      for (size_t i = 0; i < text.size(); ++i)
        delta.logprobs.push_back({-0.5f - static_cast<float>(choice), {{'y', -0.25f}}});
      return delta;
    };
    TokenDelta first = delta(0, "p", 0);
    first.prompt_logprobs.resize(live.request.prompt_tokens.size() - 1);
    live.sink->OnDelta(delta(0, "x", 2));
    live.sink->OnDelta(first);
    live.sink->OnDelta(delta(1, "q", 0));
    live.sink->OnChoiceEnd(Stopped(2, 0));
    live.sink->OnDelta(delta(1, "yz", 2));
    RequestEnd nothing = Stopped(0, 1);  // not a token, only what was held back
    nothing.tail_text = "held";
    live.sink->OnChoiceEnd(nothing);
    RequestEnd end = FakeEngine::End(3, 2);
    end.all.completion_tokens = 5;
    live.sink->OnEnd(end);
  });
  const grpc::Status status = stub_->Complete(&context, request, &response);
  engine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.choices_size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(response.choices(i).choice(), static_cast<uint32_t>(i));
  EXPECT_EQ(response.choices(0).text(), "pq");
  EXPECT_EQ(response.choices(1).text(), "held");
  EXPECT_EQ(response.choices(2).text(), "xyz");
  EXPECT_THAT(response.choices(2).token_ids(), ElementsAre('x', 'y', 'z'));
  EXPECT_EQ(response.choices(2).logprobs_size(), 3);
  EXPECT_EQ(response.choices(2).logprobs(0).chosen().logprob(), -2.5f);
  EXPECT_EQ(response.choices(0).finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.choices(2).finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.prompt_logprobs_size(), 3) << "once";
  EXPECT_EQ(response.usage().completion_tokens(), 5u);
  EXPECT_EQ(response.usage().prompt_tokens(), 3u);
  EXPECT_THAT(response.started().choice_seeds(),
              ElementsAre(9u, ChoiceSeed(9, 1), ChoiceSeed(9, 2)));
}

TEST_F(ChoicesTest, AClientThatGoesEndsTheRequestWithAllOfThem) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Several(4));
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  for (uint32_t choice = 0; choice < 4; ++choice)
    live.sink->OnDelta(FakeEngine::Delta(0, "x", choice));
  context.TryCancel();
  EXPECT_EQ(engine_.AwaitCancel(), "#1") << "one request, whatever it has";
  live.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  EXPECT_EQ(ReadAll(*stream).status.error_code(), grpc::StatusCode::CANCELLED);
}

class SlowChoicesTest : public ChoicesTest {
 protected:
  void SetUp() override {
    options_.slow_reader.max_pending_tokens = 10;
    options_.slow_reader.patience = absl::Milliseconds(200);
    StartServer();
    grpc::ChannelArguments arguments;  // a window that fills at once
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
    slow_ = v1::Inference::NewStub(Channel(server_->ports().inference, arguments));
  }
  std::unique_ptr<v1::Inference::Stub> slow_;
};

TEST_F(SlowChoicesTest, ASlowReaderLosesAllChoicesAtOnce) {
  grpc::ClientContext context;
  auto stream = slow_->Generate(&context, Several(4));
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  const std::string text(1000, 'x');
  live.sink->OnDelta(FakeEngine::Delta(0, text, 3));
  live.sink->OnChoiceEnd(FakeEngine::End(1000, 3));
  // An engine goes on: all at once might fit a single message, behind which nothing waits.
  uint32_t index = 0;
  AwaitTrue("a cancel", [&] {
    for (uint32_t choice = 0; choice < 3; ++choice)
      live.sink->OnDelta(FakeEngine::Delta(index, text, choice));
    index += 1000;
    return engine_.cancelled();
  });
  EXPECT_EQ(engine_.AwaitCancel(), "#1");
  live.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  const absl::Status status = FromGrpc(ReadAll(*stream).status);
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    EXPECT_EQ(ErrorReason(status), "SLOW_READER");
    EXPECT_THAT(std::string(status.message()), HasSubstr("after the last token that came"));
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
  metrics_.Await("slow_readers", 1);
}

}  // namespace
}  // namespace bitshard
