// Resume and status events through the API: answers that go on after any token without a delta
// twice or missing, what cannot be resumed and why, and what a caller hears while no tokens come.

#include <algorithm>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// In the manner of Qwen3: reasoning, calls as JSON between tags.
constexpr char kThinkingTemplate[] =
    "{% if tools %}<tool_call></tool_call>{% endif %}{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}a:<think>\n{% endif %}";

constexpr char kAnswer[] =
    "I should look.</think>\n\nTwo calls.<tool_call>\n{\"name\": \"a\", \"arguments\": "
    "{\"x\": [1, 2]}}\n</tool_call>\n<tool_call>{\"name\": \"b\", \"arguments\": {}}</tool_call>";

// What a caller has of an answer.
struct Received {
  std::string text, reasoning, calls;
  uint32_t tokens = 0;
  std::optional<v1::Finished> finished;

  void Take(const v1::GenerateResponse& response) {
    text += response.text();
    reasoning += response.reasoning();
    if (response.has_tool_call()) {
      const v1::ToolCall& call = response.tool_call();
      if (call.has_name()) absl::StrAppend(&calls, "\n", call.index(), call.name(), call.id());
      calls += call.arguments_json();
    }
    tokens += response.token_count();
    if (response.has_finished()) finished = response.finished();
  }
  friend bool operator==(const Received& a, const Received& b) {
    return a.text == b.text && a.reasoning == b.reasoning && a.calls == b.calls;
  }
  friend Received operator+(const Received& a, const Received& b) {
    return {a.text + b.text, a.reasoning + b.reasoning, a.calls + b.calls, a.tokens + b.tokens,
            b.finished};
  }
};

std::ostream& operator<<(std::ostream& out, const Received& received) {
  return out << "text \"" << received.text << "\" reasoning \"" << received.reasoning
             << "\" calls \"" << received.calls << "\"";
}

class ResumeTest : public FrontendTest {
 protected:
  void SetUp() override {
    auto chat = ChatTemplate::Parse(kThinkingTemplate, "", "");
    ASSERT_TRUE(chat.ok()) << chat.status();
    chat_template_ = *std::move(chat);
    format_.emplace(kThinkingTemplate);
    model_.output_format = &*format_;
    model_.context_tokens = 4096;
    StartServer();
  }

  static v1::GenerateRequest Chat() {
    v1::GenerateRequest request;
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content("hot?");
    for (const char* name : {"a", "b"}) request.mutable_chat()->add_tools()->set_name(name);
    request.mutable_sampling()->set_temperature(1);
    request.mutable_output()->set_token_ids(true);
    return request;
  }

  static void Add(const std::string& bytes, v1::GenerateRequest& request) {
    for (const char byte : bytes)
      request.mutable_resume()->add_output_ids(static_cast<unsigned char>(byte));
  }

  // The rest of an answer of bytes, from byte `from` on, one token each.
  static void Play(RequestSink& sink, const std::string& answer, size_t from) {
    sink.OnAdmitted();
    for (size_t i = from; i < answer.size(); ++i)
      sink.OnDelta(FakeEngine::Delta(static_cast<uint32_t>(i), answer.substr(i, 1)));
    sink.OnEnd(End(answer, from));
  }
  static RequestEnd End(const std::string& answer, size_t resumed) {
    RequestEnd end = FakeEngine::End(static_cast<uint32_t>(answer.size()));
    end.finish_reason = FinishReason::kStop;
    end.resumed_tokens = static_cast<uint32_t>(resumed);
    return end;
  }

  std::optional<OutputFormat> format_;
};

TEST_F(ResumeTest, ADeltaIsSentOnceWhereverTheStreamBreaks) {
  const std::string answer = kAnswer;
  // The unbroken stream, read token by token: what a caller has after each of them.
  std::vector<Received> after(1);
  v1::Started started;
  {
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, Chat());
    const auto live = engine_.Await();
    live.sink->OnAdmitted();
    Received received;
    v1::GenerateResponse response;
    for (size_t i = 0; i < answer.size(); ++i) {
      live.sink->OnDelta(FakeEngine::Delta(static_cast<uint32_t>(i), answer.substr(i, 1)));
      do {
        ASSERT_TRUE(stream->Read(&response));
        EXPECT_EQ(response.token_index(), i);
        if (response.has_started()) started = response.started();
        received.Take(response);
      } while (response.token_count() == 0);
      after.push_back(received);
    }
    live.sink->OnEnd(End(answer, 0));
    while (stream->Read(&response)) received.Take(response);
    ASSERT_TRUE(stream->Finish().ok());
    after.back() = received;
  }
  EXPECT_EQ(after.back().reasoning, "I should look.");
  EXPECT_EQ(after.back().text, "Two calls.");
  EXPECT_THAT(after.back().calls, HasSubstr("{\"x\": [1, 2]}\n1b"));
  EXPECT_EQ(after.back().finished->reason(), v1::FINISH_REASON_TOOL_CALLS);

  for (size_t k = 0; k <= answer.size(); ++k) {
    SCOPED_TRACE(absl::StrCat("after ", answer.substr(0, k)));
    v1::GenerateRequest request = Chat();
    v1::Resume& resume = *request.mutable_resume();
    resume.set_seed(started.seed());
    resume.set_model_fingerprint(started.model_fingerprint());
    Add(answer.substr(0, k), request);
    grpc::ClientContext context;
    const size_t before = engine_.submitted();
    auto stream = stub_->Generate(&context, request);
    const auto live = engine_.Await(before + 1);
    EXPECT_EQ(live.request.resumed,
              std::vector<int32_t>(resume.output_ids().begin(), resume.output_ids().end()));
    EXPECT_EQ(live.request.seed, started.seed());
    EXPECT_EQ(live.request.replayed != nullptr, k > 0) << "the engine's thread need not";
    Play(*live.sink, answer, k);
    Received rest;
    v1::GenerateResponse response;
    bool first = true;
    while (stream->Read(&response)) {
      if (std::exchange(first, false)) {
        EXPECT_EQ(response.token_index(), k);
        EXPECT_EQ(response.started().seed(), started.seed());
      }
      rest.Take(response);
    }
    ASSERT_TRUE(stream->Finish().ok());
    EXPECT_EQ(rest.tokens, answer.size() - k);
    // At the last token the unbroken stream had its end, too.
    if (k < answer.size()) {
      EXPECT_EQ(after[k] + rest, after.back());
    }
    ASSERT_TRUE(rest.finished.has_value());
    EXPECT_EQ(rest.finished->reason(), v1::FINISH_REASON_TOOL_CALLS);
    EXPECT_EQ(rest.finished->usage().completion_tokens(), answer.size());
    EXPECT_EQ(rest.finished->usage().resumed_tokens(), k);
    if (HasFailure()) break;
  }
}

TEST_F(ResumeTest, ManyDeltasOfOneTokenAreCoveredByTheLastOfThem) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Chat());
  const auto live = engine_.Await();
  const std::string answer = "r</think>t";
  TokenDelta delta = FakeEngine::Delta(0, answer);
  delta.logprobs.resize(answer.size());
  live.sink->OnDelta(delta);
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.reasoning(), "r");
  EXPECT_TRUE(response.has_started());
  EXPECT_EQ(response.token_index(), 0u);
  EXPECT_EQ(response.token_count(), 0u);
  EXPECT_THAT(response.token_ids(), IsEmpty());
  EXPECT_THAT(response.logprobs(), IsEmpty());
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.text(), "t");
  EXPECT_FALSE(response.has_started());
  EXPECT_EQ(response.token_index(), 0u);
  EXPECT_EQ(response.token_count(), answer.size());
  EXPECT_EQ(static_cast<size_t>(response.token_ids_size()), answer.size());
  EXPECT_EQ(static_cast<size_t>(response.logprobs_size()), answer.size());
  live.sink->OnEnd(End(answer, 0));
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(ResumeTest, CompleteGivesTheRest) {
  const std::string answer = kAnswer;
  const size_t k = answer.find("[1");
  v1::CompleteRequest request;
  ASSERT_TRUE(request.ParseFromString(Chat().SerializeAsString()));
  request.mutable_resume()->set_seed(7);
  for (size_t i = 0; i < k; ++i)
    request.mutable_resume()->add_output_ids(static_cast<unsigned char>(answer[i]));
  v1::CompleteResponse response;
  grpc::ClientContext context;
  std::thread engine([&] { Play(*engine_.Await().sink, answer, k); });
  const grpc::Status status = stub_->Complete(&context, request, &response);
  engine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::CompletedChoice& choice = response.choices(0);
  EXPECT_FALSE(choice.has_reasoning());
  EXPECT_EQ(choice.text(), "");
  EXPECT_EQ(static_cast<size_t>(choice.token_ids_size()), answer.size() - k);
  ASSERT_EQ(choice.tool_calls_size(), 2);
  EXPECT_EQ(choice.tool_calls(0).index(), 0u);
  EXPECT_FALSE(choice.tool_calls(0).has_name()) << "it was sent before";
  EXPECT_EQ(choice.tool_calls(0).arguments_json(), "[1, 2]}");
  EXPECT_EQ(choice.tool_calls(1).name(), "b");
  EXPECT_EQ(choice.finished().reason(), v1::FINISH_REASON_TOOL_CALLS);
  EXPECT_EQ(choice.finished().usage().resumed_tokens(), k);
}

TEST_F(ResumeTest, WhatTheEngineGets) {
  v1::GenerateRequest request = Request();
  request.set_request_id("again");
  request.set_choices(3);
  request.mutable_output()->set_prompt_logprobs(true);
  v1::Resume& resume = *request.mutable_resume();
  resume.set_supersede(true);
  resume.set_choice(2);
  const auto submit = [&] {
    grpc::ClientContext context;
    const size_t before = engine_.submitted();
    auto stream = stub_->Generate(&context, request);
    const auto live = engine_.Await(before + 1);
    live.sink->OnEnd(FakeEngine::Failed(absl::UnavailableError("lost")));
    Finish(*stream);
    return live.request;
  };
  // Nothing was received: it begins anew, scores and all, with a seed of its own.
  const GenerateRequest anew = submit();
  EXPECT_TRUE(anew.supersede);
  EXPECT_THAT(anew.resumed, IsEmpty());
  EXPECT_EQ(anew.score_from, 0u);
  EXPECT_NE(submit().seed, anew.seed);
  resume.set_seed(99);
  resume.add_output_ids('x');
  const GenerateRequest resumed = submit();
  EXPECT_THAT(resumed.resumed, ElementsAre('x'));
  EXPECT_EQ(resumed.seed, 99u);
  EXPECT_FALSE(resumed.score_from.has_value()) << "the caller has the scores";
  EXPECT_EQ(resumed.choices, 1u);
  EXPECT_EQ(resumed.first_choice, 2u);
  EXPECT_EQ(resumed.max_tokens, 8u);
  EXPECT_FALSE(resumed.status_events);
  request.mutable_sampling()->set_seed(5);
  resume.clear_seed();
  EXPECT_EQ(submit().seed, 5u);
}

TEST_F(ResumeTest, WhatCannotBeResumedNamesTheField) {
  struct Case {
    std::string field, hint;
    std::function<void(v1::GenerateRequest&)> change;
  };
  const std::vector<Case> cases = {
      {"resume.output_ids[1]", "vocabulary",
       [](auto& r) { r.mutable_resume()->add_output_ids(kByteTokenizerVocab); }},
      {"resume.output_ids", "max_tokens 1", [](auto& r) { r.set_max_tokens(1), Add("y", r); }},
      {"resume.seed", "sampling.seed is 8",
       [](auto& r) { r.mutable_sampling()->set_seed(8), r.mutable_resume()->set_seed(9); }},
      {"resume.seed", "Started.seed", [](auto& r) { r.mutable_sampling()->set_temperature(0.5f); }},
      {"resume.supersede", "request_id", [](auto& r) { r.mutable_resume()->set_supersede(true); }},
      {"resume.choice", "below choices", [](auto& r) { r.mutable_resume()->set_choice(1); }},
      {"resume.choice", "below choices",
       [](auto& r) { r.set_choices(2), r.mutable_resume()->set_choice(2); }},
      {"resume.output_ids[3]", "stop string",
       [](auto& r) { r.mutable_stop()->add_strings("yz"), Add("yz!", r); }},
      {"resume.output_ids[2]", "an end token",
       [](auto& r) { r.mutable_resume()->add_output_ids(kByteTokenizerEos), Add("!", r); }},
      {"resume.output_ids[1]", "stop.min_tokens",
       [](auto& r) {
         r.mutable_stop()->set_min_tokens(3);
         r.mutable_resume()->add_output_ids(kByteTokenizerEos);
       }},
      {"resume.output_ids[0]", "banned_token_ids",
       [](auto& r) { r.mutable_sampling()->add_banned_token_ids('x'); }},
      {"resume.output_ids[1]", "allowed_token_ids",
       [](auto& r) { r.mutable_sampling()->add_allowed_token_ids('x'), Add("y", r); }},
  };
  for (const Case& c : cases) {
    v1::GenerateRequest request = Request();
    Add("x", request);
    c.change(request);
    const absl::Status status = Refused(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field << ": " << status;
    EXPECT_THAT(BadFields(status), ElementsAre(c.field));
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.hint)) << c.field;
  }
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(ResumeTest, AnotherModelsAnswerIsNotGoneOnWith) {
  v1::GenerateRequest request = Request();
  Add("x", request);
  request.mutable_resume()->set_model_fingerprint("def-a16-bf16");
  const absl::Status status = Refused(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "MODEL_CHANGED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("def-a16-bf16"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("abc-a16-bf16"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("without resume"));
  EXPECT_EQ(metrics_.Take().size(), 1u) << "it counts as a refusal";
}

TEST_F(ResumeTest, WithoutMaxTokensTheContextIsTheBound) {
  model_.context_tokens = 10;
  v1::GenerateRequest request = Request("abc");
  request.clear_max_tokens();
  Add("1234567", request);
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  EXPECT_EQ(live.request.max_tokens, 7u);
  live.sink->OnEnd(FakeEngine::End(7));
  EXPECT_TRUE(Finish(*stream).ok());
  Add("8", request);
  EXPECT_THAT(BadFields(Refused(request)), ElementsAre("resume.output_ids"));
}

TEST_F(ResumeTest, StatusEventsComeBeforeTokens) {
  v1::GenerateRequest request = Request();
  request.set_request_id("my-id");
  request.mutable_output()->set_status_events(true);
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  EXPECT_TRUE(live.request.status_events);
  live.sink->OnStatus({.state = RequestStatus::State::kQueued,
                       .ahead = 3,
                       .predicted_wait = absl::Milliseconds(1500)});
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.started().request_id(), "my-id");
  EXPECT_EQ(response.status().state(), v1::REQUEST_STATE_QUEUED);
  EXPECT_EQ(response.status().queue_position(), 3u);
  EXPECT_EQ(response.status().predicted_wait().seconds(), 1);
  EXPECT_EQ(response.token_count(), 0u);
  EXPECT_EQ(context.GetServerInitialMetadata().find("x-request-id")->second, "my-id");
  live.sink->OnAdmitted();
  live.sink->OnStatus({.state = RequestStatus::State::kPrefill, .computed = 8, .total = 20});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.has_started());
  EXPECT_EQ(response.status().state(), v1::REQUEST_STATE_PREFILL);
  EXPECT_EQ(response.status().computed_tokens(), 8u);
  EXPECT_EQ(response.status().total_tokens(), 20u);
  EXPECT_FALSE(response.status().has_queue_position());
  live.sink->OnDelta(FakeEngine::Delta(0, "x"));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.has_status());
  EXPECT_EQ(response.text(), "x");
  live.sink->OnStatus({.state = RequestStatus::State::kPreempted});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().state(), v1::REQUEST_STATE_PREEMPTED);
  live.sink->OnStatus({.state = RequestStatus::State::kRecovering});
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().state(), v1::REQUEST_STATE_RECOVERING);
  live.sink->OnEnd(FakeEngine::End(1));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_finished());
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(ResumeTest, AReaderThatIsBehindHearsTheLatestEventOnly) {
  v1::GenerateRequest request = Request();
  request.mutable_output()->set_status_events(true);
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  constexpr uint32_t kTokens = 2000;
  for (uint32_t i = 0; i < kTokens; ++i) {
    for (uint32_t computed = 1; computed < 5; ++computed) {
      live.sink->OnStatus(
          {.state = RequestStatus::State::kPrefill, .computed = 10 * i + computed, .total = 1});
    }
    live.sink->OnDelta(FakeEngine::Delta(i, "x"));
  }
  live.sink->OnEnd(FakeEngine::End(kTokens));
  v1::GenerateResponse response;
  uint32_t next = 0, last = 0, events = 0;
  bool finished = false;
  while (stream->Read(&response)) {
    EXPECT_FALSE(finished);
    finished = response.has_finished();
    if (response.token_count() > 0) {
      EXPECT_EQ(response.token_index(), next);
    }
    next += response.token_count();
    if (!response.has_status()) continue;
    ++events;
    EXPECT_GT(response.status().computed_tokens(), last) << "an old event came late";
    last = response.status().computed_tokens();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(next, kTokens);
  EXPECT_TRUE(finished);
  EXPECT_LT(events, 4 * kTokens) << "none was merged";
}

TEST_F(ResumeTest, AnEventIsNoTokenForTheMetrics) {
  v1::GenerateRequest request = Request();
  request.mutable_output()->set_status_events(true);
  {
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, request);
    const auto live = engine_.Await();
    live.sink->OnStatus({.state = RequestStatus::State::kQueued});
    v1::GenerateResponse response;
    ASSERT_TRUE(stream->Read(&response));
    live.sink->OnEnd(FakeEngine::Failed(absl::DeadlineExceededError("too late")));
    EXPECT_EQ(Finish(*stream).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  engine_.ForgetAll();
  metrics_.Await("without_token", 1);
  EXPECT_EQ(metrics_.Seen("first_tokens"), 0);
  EXPECT_EQ(metrics_.Seen("backlog"), 0);
}

}  // namespace
}  // namespace bitshard
