// Generate and Complete over real gRPC: streams, ends, cancellation, deadlines, slow readers,
// errors with their details.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/engine/error_reason.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GenerateTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(); }
};

TEST_F(GenerateTest, StreamsTokensThenFinishedThenOk) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request("hi");
  request.set_request_id("my-id");
  request.mutable_sampling()->set_seed(7);
  request.mutable_output()->set_token_ids(true);
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  EXPECT_THAT(live.request.prompt_tokens, ElementsAre('h', 'i'));
  EXPECT_EQ(live.request.request_id, "my-id");
  live.sink->OnAdmitted();
  live.sink->OnDelta(FakeEngine::Delta(0, "x"));

  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.started().request_id(), "my-id");
  EXPECT_EQ(response.started().seed(), 7u);
  EXPECT_EQ(response.started().model_fingerprint(), "abc-a16-bf16");
  EXPECT_EQ(response.started().prompt_tokens(), 2u);
  EXPECT_EQ(response.token_index(), 0u);
  EXPECT_EQ(response.text(), "x");
  EXPECT_THAT(response.token_ids(), ElementsAre('x'));
  EXPECT_EQ(context.GetServerInitialMetadata().find("x-request-id")->second, "my-id");

  live.sink->OnDelta(FakeEngine::Delta(1, "yz"));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.has_started());
  EXPECT_EQ(response.token_index(), 1u);
  EXPECT_EQ(response.token_count(), 2u);

  RequestEnd end = FakeEngine::End(3);
  end.tail_text = "!";
  end.matched_stop = "stop";
  end.finish_reason = FinishReason::kStop;
  live.sink->OnEnd(end);
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.text(), "!");
  EXPECT_EQ(response.token_index(), 3u);
  EXPECT_EQ(response.finished().reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.finished().stop(), "stop");
  EXPECT_EQ(response.finished().usage().completion_tokens(), 3u);
  EXPECT_EQ(response.finished().usage().decode_time().seconds(), 1);
  EXPECT_EQ(response.finished().usage().decode_time().nanos(), 500'000'000);
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(GenerateTest, ASeedAndAnIdAreDrawnWhenNoneIsGiven) {
  std::vector<v1::Started> started;
  for (size_t i = 1; i <= 2; ++i) {
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, Request());
    const auto live = engine_.Await(i);
    live.sink->OnAdmitted();
    live.sink->OnEnd(FakeEngine::End(0));
    v1::GenerateResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.started().seed(), live.request.seed);
    started.push_back(response.started());
    EXPECT_TRUE(Finish(*stream).ok());
  }
  EXPECT_NE(started[0].seed(), started[1].seed());
  EXPECT_NE(started[0].request_id(), started[1].request_id());
}

TEST_F(GenerateTest, TokensThatComeFasterThanTheyAreReadAreMergedWithoutGap) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  std::string sent;
  for (uint32_t i = 0; i < 5000; ++i) {
    const std::string text(1, static_cast<char>('a' + i % 26));
    live.sink->OnDelta(FakeEngine::Delta(i, text));
    sent += text;
  }
  live.sink->OnEnd(FakeEngine::End(5000));
  v1::GenerateResponse response;
  std::string received;
  uint32_t next = 0;
  while (stream->Read(&response)) {
    EXPECT_EQ(response.token_index(), next);
    next += response.token_count();
    received += response.text();
  }
  EXPECT_TRUE(Finish(*stream).ok());
  EXPECT_EQ(received, sent);
  EXPECT_EQ(next, 5000u);
}

TEST_F(GenerateTest, LogprobsCarryTokenTexts) {
  grpc::ClientContext context;
  v1::GenerateRequest request = Request();
  request.mutable_output()->set_top_logprobs(1);
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  EXPECT_TRUE(live.request.logprobs);
  TokenDelta delta = FakeEngine::Delta(0, "x");
  delta.logprobs.push_back({-0.5f, {{'y', -0.25f}}});
  live.sink->OnDelta(delta);
  live.sink->OnEnd(FakeEngine::End(1));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.logprobs(0).chosen().text(), "x");
  EXPECT_EQ(response.logprobs(0).chosen().logprob(), -0.5f);
  EXPECT_EQ(response.logprobs(0).top(0).text(), "y");
  while (stream->Read(&response)) {
  }
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(GenerateTest, AnErrorAfterTokensStillDeliversTheTokens) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  live.sink->OnDelta(FakeEngine::Delta(0, "xy"));
  live.sink->OnEnd(FakeEngine::Failed(WorkerLostError(absl::UnavailableError("rank 1: killed"))));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.token_count(), 2u);
  EXPECT_FALSE(response.has_finished());
  EXPECT_FALSE(stream->Read(&response));
  const absl::Status status = FromGrpc(Finish(*stream));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: killed"));
  EXPECT_EQ(ErrorReason(status), "WORKER_LOST");
  EXPECT_TRUE(RetryDelay(status).has_value());
}

TEST_F(GenerateTest, ARefusalForLoadCarriesRetryInfoAndPushbackAndNoInitialMetadata) {
  engine_.set_refusal(QueueFullError("waiting_requests", 4, 4));
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  v1::GenerateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const absl::Status status = FromGrpc(Finish(*stream));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryDelay(status), absl::Seconds(1));
  EXPECT_EQ(context.GetServerInitialMetadata().count("x-request-id"), 0u);
  ASSERT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  EXPECT_EQ(context.GetServerTrailingMetadata().find("grpc-retry-pushback-ms")->second, "1000");
}

TEST_F(GenerateTest, ADuplicateLiveIdIsAlreadyExists) {
  engine_.set_refusal(DuplicateRequestError("my-id"));
  EXPECT_EQ(Refused(Request()).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(GenerateTest, ClientCancelReachesTheEngine) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  context.TryCancel();
  EXPECT_EQ(engine_.AwaitCancel(), "#1");
  live.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  EXPECT_EQ(Finish(*stream).error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerateTest, ALateCancelDoesNotReachALaterRequestOfTheSameName) {
  v1::GenerateRequest request = Request();
  request.set_request_id("again");
  grpc::ClientContext first, second;
  auto left = stub_->Generate(&first, request);
  engine_.Await(1);
  // For the engine the first one is over, so that its name is free; its stream is still open.
  auto kept = stub_->Generate(&second, request);
  const auto live = engine_.Await(2);
  first.TryCancel();
  EXPECT_EQ(engine_.AwaitCancel(), "#1");
  engine_.Await(1).sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  live.sink->OnEnd(FakeEngine::End(0));
  EXPECT_TRUE(Finish(*kept).ok());
  EXPECT_EQ(Finish(*left).error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerateTest, TheDeadlineTravelsToTheEngine) {
  grpc::ClientContext context;
  const absl::Time deadline = absl::Now() + absl::Seconds(500);
  context.set_deadline(absl::ToChronoTime(deadline));
  auto stream = stub_->Generate(&context, Request());
  const auto live = engine_.Await();
  EXPECT_LT(absl::AbsDuration(live.request.deadline - deadline), absl::Seconds(60));
  live.sink->OnEnd(FakeEngine::Failed(absl::DeadlineExceededError("too late")));
  EXPECT_EQ(Finish(*stream).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(GenerateTest, WithoutADeadlineThereIsNone) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  const auto live = engine_.Await();
  EXPECT_EQ(live.request.deadline, absl::InfiniteFuture());
  live.sink->OnEnd(FakeEngine::End(0));
  Finish(*stream);
}

TEST_F(GenerateTest, AnExpiredDeadlineCancelsInTheEngine) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  auto stream = stub_->Generate(&context, Request());
  const grpc::Status status = Finish(*stream);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // Else it had expired before it came, or comes only now.
  if (engine_.submitted() > 0) {
    EXPECT_EQ(engine_.AwaitCancel(), "#1");
  }
}

TEST_F(GenerateTest, ChatGoesThroughTheTemplate) {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("yo");
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  EXPECT_EQ(tokenizer_->Decode(live.request.prompt_tokens, false), "<user>yo<a>");
  EXPECT_EQ(live.request.max_tokens, 64u - 11u) << "by default what is left of the context";
  live.sink->OnEnd(FakeEngine::End(0));
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(GenerateTest, LongPromptsAreTokenizedAsideAndAnswerTheSame) {
  v1::GenerateRequest request;
  request.set_text(std::string(63, 'a'));
  request.set_cache_salt(std::string(20'000, 's'));  // makes the message long
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  EXPECT_EQ(live.request.prompt_tokens.size(), 63u);
  live.sink->OnEnd(FakeEngine::End(0));
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(GenerateTest, CompleteGivesTheWholeAnswer) {
  v1::CompleteRequest request;
  request.set_text("abc");
  request.set_request_id("whole");
  request.mutable_output()->set_token_ids(true);
  v1::CompleteResponse response;
  grpc::ClientContext context;
  std::thread engine([&] {
    const auto live = engine_.Await();
    live.sink->OnAdmitted();
    live.sink->OnDelta(FakeEngine::Delta(0, "he"));
    live.sink->OnDelta(FakeEngine::Delta(2, "llo"));
    RequestEnd end = FakeEngine::End(5);
    end.tail_text = "?";
    live.sink->OnEnd(end);
  });
  const grpc::Status status = stub_->Complete(&context, request, &response);
  engine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.choices_size(), 1);
  EXPECT_EQ(response.choices(0).text(), "hello?");
  EXPECT_EQ(response.choices(0).token_ids_size(), 5);
  EXPECT_EQ(response.choices(0).finished().reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(response.started().request_id(), "whole");
  EXPECT_EQ(context.GetServerInitialMetadata().count("x-request-id"), 1u);
}

TEST_F(GenerateTest, CompleteFailsWithTheEnginesStatus) {
  v1::CompleteRequest request;
  request.set_text("abc");
  v1::CompleteResponse response;
  grpc::ClientContext context;
  std::thread engine([&] { engine_.Await().sink->OnEnd(FakeEngine::Failed(NonFiniteError(3))); });
  EXPECT_EQ(stub_->Complete(&context, request, &response).error_code(), grpc::StatusCode::INTERNAL);
  engine.join();
}

TEST_F(GenerateTest, AbortIsPassedOn) {
  v1::AbortRequest request;
  request.add_request_ids("a");
  v1::AbortResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(stub_->Abort(&context, request, &response).ok());
  EXPECT_EQ(engine_.AwaitCancel(), "/a");
}

TEST_F(GenerateTest, ShutdownWithALiveStreamEndsIt) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  std::thread engine([&] {
    engine_.AwaitCancel();  // the shutdown cancels what is left
    live.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  });
  server_->Shutdown(absl::ZeroDuration());
  engine.join();
  EXPECT_FALSE(Finish(*stream).ok());
}

class SlowReaderTest : public FrontendTest {
 protected:
  void SetUp() override { Begin(10, absl::Milliseconds(200)); }
  void Begin(uint32_t max_pending_tokens, absl::Duration patience) {
    options_.slow_reader.max_pending_tokens = max_pending_tokens;
    options_.slow_reader.patience = patience;
    StartServer();
    // A window that fills at once.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
    slow_ = v1::Inference::NewStub(Channel(server_->ports().inference, arguments));
  }
  std::unique_ptr<v1::Inference::Stub> slow_;
};

TEST_F(SlowReaderTest, AClientThatDoesNotReadIsEndedAndTheEngineIsTold) {
  grpc::ClientContext context;
  auto stream = slow_->Generate(&context, Request());
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  const std::string text(1000, 'x');
  // An engine goes on: all at once might fit a single message, behind which nothing waits.
  uint32_t index = 0;
  AwaitTrue("a cancel", [&] {
    live.sink->OnDelta(FakeEngine::Delta(index, text));
    index += 1000;
    return engine_.cancelled();
  });
  EXPECT_EQ(engine_.AwaitCancel(), "#1");
  live.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  // It reads at last: what was on its way, then why it ended.
  v1::GenerateResponse response;
  uint32_t next = 0;
  while (stream->Read(&response)) {
    EXPECT_EQ(response.token_index(), next);
    next += response.token_count();
  }
  const absl::Status status = FromGrpc(Finish(*stream));
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    EXPECT_EQ(ErrorReason(status), "SLOW_READER");
  } else {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled)
        << status;  // it came too late even for that
  }
}

TEST_F(SlowReaderTest, AClientThatNeverReadsIsCutOff) {
  grpc::ClientContext context;
  auto stream = slow_->Generate(&context, Request());
  {
    const auto live = engine_.Await();
    live.sink->OnAdmitted();
    const std::string text(1000, 'x');
    for (uint32_t i = 0; i < 2000; ++i) live.sink->OnDelta(FakeEngine::Delta(i * 1000, text));
    live.sink->OnEnd(FakeEngine::End(2'000'000));
  }
  // The server waits for no client: with the stream still open it would not come down.
  server_->Shutdown(absl::InfiniteDuration());
  EXPECT_FALSE(Finish(*stream).ok());
}

// Only the end is left to be taken: that is no reason for an error.
TEST_F(SlowReaderTest, AClientThatTakesItsTokensLateGetsItsEnd) {
  server_->Shutdown(absl::ZeroDuration());
  static std::atomic<int64_t> ahead_s{0}, looks{0};
  options_.slow_reader.now = [] {
    ++looks;
    return absl::Now() + absl::Seconds(ahead_s.load());
  };
  Begin(10, absl::Minutes(1));
  grpc::ClientContext context;
  auto stream = slow_->Generate(&context, Request());
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  live.sink->OnDelta(FakeEngine::Delta(0, std::string(300'000, 'x')));  // more than its window
  AwaitTrue("an empty backlog", [this] { return metrics_.Seen("backlog") == 0; });
  live.sink->OnEnd(FakeEngine::End(300'000));
  ahead_s = 75;  // it is cut off after twice the patience
  AwaitTrue("looks after it", [before = looks.load()] { return looks >= before + 3; });
  v1::GenerateResponse response;
  uint32_t tokens = 0;
  bool finished = false;
  while (stream->Read(&response)) {
    tokens += response.token_count();
    finished |= response.has_finished();
  }
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(tokens, 300'000u);
  EXPECT_TRUE(finished);
  EXPECT_EQ(metrics_.Seen("slow_readers"), 0);
}

TEST_F(SlowReaderTest, AClientThatDoesNotTakeTheLastMessageIsCountedWhenItIsCutOff) {
  server_->Shutdown(absl::ZeroDuration());
  Begin(1 << 20, absl::Milliseconds(200));
  grpc::ClientContext context;
  auto stream = slow_->Generate(&context, Request());
  {
    const auto live = engine_.Await();
    live.sink->OnAdmitted();
    live.sink->OnDelta(FakeEngine::Delta(0, "x"));
    v1::GenerateResponse response;
    ASSERT_TRUE(stream->Read(&response));  // before the end: from there on time counts
    RequestEnd end = FakeEngine::End(1);
    end.tail_text.assign(300'000, 'x');  // more than its window
    live.sink->OnEnd(end);
  }
  engine_.ForgetAll();
  metrics_.Await("slow_readers", 1);
  EXPECT_FALSE(Finish(*stream).ok());
}

}  // namespace
}  // namespace bitshard
