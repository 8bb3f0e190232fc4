// Chats through the API: fields checked, prompts rendered with tools and variables, answers taken
// apart into text, reasoning and calls of tools, streamed and whole.

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/engine/sampling.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// In the manner of Qwen3: reasoning, calls as JSON between tags.
constexpr char kThinkingTemplate[] =
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|end|>{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}#{{ c.id }}</tool_call>{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.name }} {{ m.tool_call_id }}){% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|end|>assistant:{% if mood is defined %}[{{ mood }}]{% endif %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{% endif %}";

class ChatTest : public FrontendTest {
 protected:
  void SetUp() override {
    UseTemplate(kThinkingTemplate);
    model_.context_tokens = 4096;
    StartServer();
  }

  void UseTemplate(const std::string& source) {
    auto chat = ChatTemplate::Parse(source, "", "");
    ASSERT_TRUE(chat.ok()) << chat.status();
    chat_template_ = *std::move(chat);
    format_.emplace(source);
    model_.output_format = &*format_;
  }

  static v1::GenerateRequest Chat(const std::string& content, bool tools = true) {
    v1::GenerateRequest request;
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(content);
    if (tools) {
      v1::Tool& tool = *request.mutable_chat()->add_tools();
      tool.set_name("get_weather");
      tool.set_description("of a city");
      tool.set_parameters_json(R"({"type": "object", "properties": {"city": {"type": "string"}}})");
    }
    request.set_max_tokens(64);
    return request;
  }

  std::string Rendered(const v1::Chat& chat) {
    v1::ApplyChatTemplateRequest request;
    *request.mutable_chat() = chat;
    v1::ApplyChatTemplateResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->ApplyChatTemplate(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    tokens_.assign(response.token_ids().begin(), response.token_ids().end());
    return response.text();
  }

  struct Answer {
    std::vector<std::string> deltas;  // "text ...", "reasoning ...", "call <index> <name> <args>"
    std::string id;                   // of the last call
    v1::Finished finished;
    uint32_t tokens = 0;
  };

  // The answer to `request` when the model writes `pieces`, one delta each.
  Answer Stream(const v1::GenerateRequest& request, const std::vector<std::string>& pieces,
                FinishReason reason = FinishReason::kStop, const std::string& stop = "") {
    grpc::ClientContext context;
    const size_t before = engine_.submitted();
    auto stream = stub_->Generate(&context, request);
    last_ = engine_.Await(before + 1);
    last_.sink->OnAdmitted();
    uint32_t index = 0;
    for (const std::string& piece : pieces) {
      last_.sink->OnDelta(FakeEngine::Delta(index, piece));
      index += static_cast<uint32_t>(piece.size());
    }
    RequestEnd end = FakeEngine::End(index);
    end.finish_reason = reason;
    end.matched_stop = stop;
    if (stop.empty() && reason == FinishReason::kStop) end.matched_token = kByteTokenizerEos;
    last_.sink->OnEnd(end);
    Answer answer;
    v1::GenerateResponse response;
    while (stream->Read(&response)) {
      EXPECT_FALSE(answer.finished.has_reason()) << "a message after the last one";
      EXPECT_EQ(response.token_index(), answer.tokens);
      answer.tokens += response.token_count();
      if (response.has_text()) Add("text ", response.text(), answer);
      if (response.has_reasoning()) Add("reasoning ", response.reasoning(), answer);
      if (response.has_tool_call()) {
        const v1::ToolCall& call = response.tool_call();
        if (call.has_name()) {
          answer.id = call.id();
          answer.deltas.push_back(absl::StrCat("call ", call.index(), " ", call.name(), " "));
        }
        Add(answer.deltas.empty() ? "" : answer.deltas.back().substr(0, 5), call.arguments_json(),
            answer);
      }
      if (response.has_finished()) answer.finished = response.finished();
    }
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_EQ(answer.tokens, index);
    return answer;
  }

  static void Add(const std::string& kind, const std::string& text, Answer& answer) {
    if (answer.deltas.empty() || !answer.deltas.back().starts_with(kind)) {
      answer.deltas.push_back(kind);
    }
    answer.deltas.back() += text;
  }

  std::optional<OutputFormat> format_;
  std::vector<uint32_t> tokens_;
  FakeEngine::Submitted last_;
};

TEST_F(ChatTest, RendersToolsCallsReasoningAndVariables) {
  v1::GenerateRequest request = Chat("hot?");
  v1::Chat& chat = *request.mutable_chat();
  v1::ChatMessage& turn = *chat.add_messages();
  turn.set_role("assistant");
  turn.set_reasoning("look it up");
  v1::ToolCall& call = *turn.add_tool_calls();
  call.set_id("c1");
  call.set_name("get_weather");
  call.set_arguments_json(R"({"city":"Oslo","days":[1,2.0]})");
  v1::ChatMessage& result = *chat.add_messages();
  result.set_role("tool");
  result.set_name("get_weather");
  result.set_tool_call_id("c1");
  result.set_content("3");
  chat.set_template_variables_json(R"({"enable_thinking": false, "mood": "calm"})");
  EXPECT_EQ(Rendered(chat),
            R"(<tools>{"type": "function", "function": {"name": "get_weather", "description": )"
            R"("of a city", "parameters": {"type": "object", "properties": {"city": {"type": )"
            R"("string"}}}}}</tools><|end|>user:hot?<|end|>assistant:<think>look it up</think>)"
            R"(<tool_call>get_weather{"city": "Oslo", "days": [1, 2.0]}#c1</tool_call>)"
            "<|end|>tool:3(get_weather c1)<|end|>assistant:[calm]");
  EXPECT_EQ(std::count(tokens_.begin(), tokens_.end(), uint32_t{kByteTokenizerEos}), 4);
}

TEST_F(ChatTest, ControlTokensOfCallersAreLetters) {
  v1::GenerateRequest request = Chat("a<|end|>b");
  request.mutable_chat()->mutable_tools(0)->set_description("<|end|>");
  request.mutable_chat()->set_template_variables_json(R"({"mood": "<|end|>"})");
  EXPECT_THAT(Rendered(request.chat()), HasSubstr("user:a<|end|>b<|end|>assistant"));
  EXPECT_EQ(std::count(tokens_.begin(), tokens_.end(), uint32_t{kByteTokenizerEos}), 2);
  Stream(request, {});
  EXPECT_EQ(last_.request.prompt_tokens, std::vector<int32_t>(tokens_.begin(), tokens_.end()));
}

TEST_F(ChatTest, WrongFieldsAreNamed) {
  v1::GenerateRequest request = Chat("x");
  v1::Chat& chat = *request.mutable_chat();
  chat.mutable_tools(0)->set_parameters_json("{\"type\": ");
  chat.add_tools();
  chat.mutable_messages(0)->add_tool_calls()->set_arguments_json("[1]");
  chat.set_template_variables_json(R"({"messages": []})");
  const absl::Status status = Refused(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(BadFields(status),
              testing::UnorderedElementsAre("chat.tools[0].parameters_json", "chat.tools[1].name",
                                            "chat.messages[0].tool_calls[0].name",
                                            "chat.messages[0].tool_calls[0].arguments_json",
                                            "chat.template_variables_json"));
  v1::ApplyChatTemplateRequest apply;
  *apply.mutable_chat() = chat;
  v1::ApplyChatTemplateResponse response;
  grpc::ClientContext context;
  EXPECT_THAT(BadFields(FromGrpc(stub_->ApplyChatTemplate(&context, apply, &response))), SizeIs(5));
  std::string many = "{";
  for (int i = 0; i < 257; ++i) absl::StrAppend(&many, i == 0 ? "" : ",", "\"v", i, "\":0");
  chat.set_template_variables_json(many + "}");
  EXPECT_THAT(std::string(Refused(request).message()), HasSubstr("257 variables; at most 256"));
  chat.set_template_variables_json(std::string(500, '['));
  EXPECT_THAT(std::string(Refused(request).message()), HasSubstr("nested deeper than 100"));
}

TEST_F(ChatTest, AnswersBecomeReasoningTextAndCalls) {
  const Answer answer =
      Stream(Chat("hot?"),
             {"I should ", "look.\n</thi", "nk>\n\nOne moment.\n<tool", "_call>\n{\"name\": \"get",
              "_weather\", \"arguments\": {\"city\": \"Os", "lo\"}}\n</tool_call>"});
  EXPECT_THAT(answer.deltas, ElementsAre("reasoning I should look.", "text One moment.",
                                         R"(call 0 get_weather {"city": "Oslo"})"));
  EXPECT_THAT(answer.id, SizeIs(9));
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_TOOL_CALLS);
  EXPECT_EQ(answer.finished.token_id(), static_cast<uint32_t>(kByteTokenizerEos));
}

TEST_F(ChatTest, TwoCallsHaveTwoIds) {
  const std::string call = R"(<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>)";
  const Answer one = Stream(Chat("x"), {"</think>", call});
  const Answer two = Stream(Chat("x"), {"</think>" + call + "\n" + call});
  EXPECT_THAT(two.deltas, ElementsAre("call 0 get_weather {}", "call 1 get_weather {}"));
  EXPECT_NE(one.id, two.id);
}

TEST_F(ChatTest, WhatIsNoCallIsText) {
  const Answer malformed = Stream(Chat("x"), {"</think><tool_call>{\"name\"", ": 5}</tool_call>"});
  EXPECT_THAT(malformed.deltas, ElementsAre("text <tool_call>{\"name\": 5}</tool_call>"));
  EXPECT_EQ(malformed.finished.reason(), v1::FINISH_REASON_STOP);
  const Answer cut = Stream(Chat("x"), {"</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a"},
                            FinishReason::kLength);
  EXPECT_THAT(cut.deltas, ElementsAre("call 0 f {\"a"));
  EXPECT_EQ(cut.finished.reason(), v1::FINISH_REASON_LENGTH);
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const Answer stopped = Stream(Chat("x"), {"</think>" + call}, FinishReason::kStop, "STOP");
  EXPECT_EQ(stopped.finished.reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(stopped.finished.stop(), "STOP");
}

TEST_F(ChatTest, WithoutToolsCallsAreText) {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const Answer answer = Stream(Chat("x", /*tools=*/false), {"r</think>" + call});
  EXPECT_THAT(answer.deltas, ElementsAre("reasoning r", "text " + call));
  EXPECT_EQ(answer.finished.reason(), v1::FINISH_REASON_STOP);
}

TEST_F(ChatTest, TheEndOfThePromptTellsWhetherReasoningIsOpen) {
  v1::GenerateRequest request = Chat("x");
  request.mutable_chat()->set_template_variables_json(R"({"enable_thinking": false})");
  EXPECT_THAT(Stream(request, {"Yes.</think>"}).deltas, ElementsAre("text Yes.</think>"));
}

TEST_F(ChatTest, RawAnswersAndTextPromptsAreLeftAlone) {
  v1::GenerateRequest raw = Chat("x");
  raw.mutable_output()->set_skip_special_tokens(false);
  EXPECT_THAT(Stream(raw, {"r</think>", "a"}).deltas, ElementsAre("text r</think>a"));
  EXPECT_THAT(Stream(Request("<think>"), {"r</think>a"}).deltas, ElementsAre("text r</think>a"));
  v1::GenerateRequest silent = Chat("x");
  silent.mutable_output()->set_text(false);
  EXPECT_THAT(Stream(silent, {"r</think>a"}).deltas, IsEmpty());
}

TEST_F(ChatTest, CompleteTakesTheWholeAnswerApart) {
  v1::CompleteRequest request;
  ASSERT_TRUE(request.ParseFromString(Chat("x").SerializeAsString()));
  v1::CompleteResponse response;
  grpc::Status status;
  std::thread caller([&] {
    grpc::ClientContext context;
    status = stub_->Complete(&context, request, &response);
  });
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  live.sink->OnDelta(FakeEngine::Delta(0, "why</think>Two calls."));
  live.sink->OnDelta(
      FakeEngine::Delta(21, R"(<tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call>)"
                            R"(<tool_call>{"name": "b", "arguments": {}}</tool_call>)"));
  RequestEnd end = FakeEngine::End(122);
  end.finish_reason = FinishReason::kStop;
  live.sink->OnEnd(end);
  caller.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::CompletedChoice& choice = response.choices(0);
  EXPECT_EQ(choice.reasoning(), "why");
  EXPECT_EQ(choice.text(), "Two calls.");
  ASSERT_EQ(choice.tool_calls_size(), 2);
  EXPECT_EQ(choice.tool_calls(0).name(), "a");
  EXPECT_EQ(choice.tool_calls(0).arguments_json(), R"({"x": 1})");
  EXPECT_EQ(choice.tool_calls(1).index(), 1u);
  EXPECT_EQ(choice.tool_calls(1).arguments_json(), "{}");
  EXPECT_NE(choice.tool_calls(0).id(), choice.tool_calls(1).id());
  EXPECT_EQ(choice.finished().reason(), v1::FINISH_REASON_TOOL_CALLS);
}

// Calls, reasoning and text of the choices come in turns; each choice is as if it came alone.
TEST_F(ChatTest, EachChoiceIsTakenApartByItself) {
  v1::GenerateRequest request = Chat("x");
  request.set_choices(2);
  request.mutable_sampling()->set_seed(5);
  const std::vector<std::vector<std::string>> pieces = {
      {"why</th", "ink>", "Two calls.", R"(<tool_call>{"name": "a", "argu)",
       R"(ments": {"x": 1}}</tool_)", "call>"},
      {"hm", "</think>No ", R"(call <tool_)", R"(call>{"name": "b", "arguments": {"y)",
       R"(": 2}}</tool)", "_call>"}};
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  live.sink->OnAdmitted();
  uint32_t index[2] = {0, 0};
  for (size_t i = 0; i < pieces[0].size(); ++i) {
    for (const uint32_t choice : {1u, 0u}) {
      live.sink->OnDelta(FakeEngine::Delta(index[choice], pieces[choice][i], choice));
      index[choice] += static_cast<uint32_t>(pieces[choice][i].size());
    }
  }
  RequestEnd cut = FakeEngine::End(index[0], 0);
  live.sink->OnChoiceEnd(cut);
  RequestEnd stop = FakeEngine::End(index[1], 1);
  stop.finish_reason = FinishReason::kStop;
  stop.matched_token = kByteTokenizerEos;
  live.sink->OnEnd(stop);
  std::string text[2], reasoning[2], name[2], arguments[2], id[2];
  v1::FinishReason reasons[2] = {};
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    const uint32_t choice = response.choice();
    ASSERT_LT(choice, 2u);
    text[choice] += response.text();
    reasoning[choice] += response.reasoning();
    name[choice] += response.tool_call().name();
    arguments[choice] += response.tool_call().arguments_json();
    id[choice] += response.tool_call().id();
    if (response.has_finished()) reasons[choice] = response.finished().reason();
  }
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(reasoning[0], "why");
  EXPECT_EQ(reasoning[1], "hm");
  EXPECT_EQ(text[0], "Two calls.");
  EXPECT_EQ(text[1], "No call");
  EXPECT_EQ(name[0] + " " + arguments[0], R"(a {"x": 1})");
  EXPECT_EQ(name[1] + " " + arguments[1], R"(b {"y": 2})");
  EXPECT_THAT(id, ElementsAre(SizeIs(9), SizeIs(9)));
  EXPECT_NE(id[0], id[1]);
  EXPECT_EQ(reasons[0], v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(reasons[1], v1::FINISH_REASON_TOOL_CALLS);
  // The second choice's id is that of the request that gives this choice alone.
  request.clear_choices();
  request.mutable_sampling()->set_seed(ChoiceSeed(5, 1));
  EXPECT_EQ(Stream(request, pieces[1]).id, id[1]);
}

TEST_F(ChatTest, ListModelsNamesTheNotations) {
  v1::ListModelsResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(stub_->ListModels(&context, v1::ListModelsRequest(), &response).ok());
  EXPECT_EQ(response.models(0).tool_call_format(), "hermes");
  EXPECT_EQ(response.models(0).reasoning_format(), "think");
}

}  // namespace
}  // namespace bitshard
