// 10,000 streamed answers of random text, through tokens and back: every tokenizer of the goldens,
// emoji, scripts of the world, bytes that form no character, stop strings and end tokens anywhere,
// reasoning and calls of tools. A FakeWorker recites the tokens; engine, frontend and gRPC are the
// real ones. What the client puts together must be what the definition says of all the tokens at
// once, whatever the pieces were: nothing lost, nothing that belongs behind a stop, every piece
// valid UTF-8.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include <grpcpp/grpcpp.h>

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/frontend/server.h"
#include "coordinator/text/output_parser.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/log.h"
#include "proto/inference.grpc.pb.h"
#include "tests/coordinator/text/golden_tokenizer.h"
#include "tests/support/await.h"
#include "tests/support/fake_executor.h"

namespace bitshard {
namespace {

using Ids = std::vector<int32_t>;

constexpr size_t kAnswers = 10'000 / std::size(kDialects);  // of each tokenizer
constexpr size_t kCallers = 8;                              // at once
constexpr uint32_t kPadding = 9;  // ids of the model that its tokenizer does not know

// In the manner of Qwen3: reasoning, calls as JSON between tags.
constexpr char kTemplate[] =
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.name }}</tool_call>{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if enable_thinking %}<think>\n{% endif %}"
    "{% endif %}";
constexpr char kOpenedPrompt[] = "assistant:<think>\n", kClosedPrompt[] = "assistant:";

constexpr char kCall[] =
    "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"東京 😀\"}}</tool_call>";
constexpr const char* kPool[] = {" ",
                                 "\n",
                                 "a",
                                 "the ",
                                 "don't",
                                 "12",
                                 "3.14",
                                 "-",
                                 "\t",
                                 "\r\n",
                                 "é",
                                 "e\u0301",
                                 "ß",
                                 "ﬁ",
                                 "中",
                                 "漢字",
                                 "東京",
                                 "你好",
                                 "こんにちは",
                                 "한국어",
                                 "สวัสดี",
                                 "น้ำ",
                                 "ไทย",
                                 "سلام",
                                 "नमस्ते",
                                 "Ω",
                                 "😀",
                                 "👍🏽",
                                 "👩\u200D👩\u200D👧",
                                 "🏳\uFE0F\u200D🌈",
                                 "🇩🇪",
                                 "\u00a0",
                                 "\u200b",
                                 "\uFEFF",
                                 "<|im_end|>",
                                 "<|eot_id|>",
                                 "<|",
                                 "|>",
                                 "<think>",
                                 "</think>",
                                 "<thi",
                                 "</",
                                 "<tool_call>",
                                 "</tool_call>",
                                 "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"東京\"}}",
                                 kCall,
                                 "{\"name\"",
                                 ": ",
                                 "\"}"};

std::string RandomText(std::mt19937& random, uint32_t max) {
  std::string text;
  for (uint32_t n = random() % (max + 1); n > 0; --n) {
    if (random() % 4 > 0) {
      text += kPool[random() % std::size(kPool)];
      continue;
    }
    char32_t c = random() % (random() % 2 == 0 ? 0x3000 : 0x20000);
    if (c >= 0xD800 && c < 0xE000) c = 0x0E01 + c % 80;  // no surrogates: Thai
    AppendUtf8(c, &text);
  }
  return text;
}

// A piece of `text` of whole characters; may be empty.
std::string RandomPiece(std::mt19937& random, const std::string& text, size_t max_characters) {
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); at += static_cast<size_t>(CodePointAt(text, at).bytes)) {
    starts.push_back(at);
  }
  if (starts.empty()) return "";
  const size_t first = random() % starts.size();
  const size_t last = first + 1 + random() % max_characters;
  const size_t end = last < starts.size() ? starts[last] : text.size();
  return text.substr(starts[first], end - starts[first]);
}

// What the model says, and what the caller asks for.
struct Script {
  Ids tokens;  // the answer if nothing ends it
  bool chat = false, tools = false, thinking = false;
  bool skip_special = true, ignore_eos = false, include_stop = false;
  std::vector<std::string> stops;
  Ids stop_tokens;
};

// The answer, whole or put together of its pieces.
struct Answer {
  std::string text, reasoning;
  std::vector<std::string> calls;  // "name arguments"
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  std::string stop;
  uint32_t tokens = 0;

  friend bool operator==(const Answer&, const Answer&) = default;
  friend void PrintTo(const Answer& answer, std::ostream* out) {
    *out << "text \"" << answer.text << "\" reasoning \"" << answer.reasoning << "\" "
         << answer.calls.size() << " calls";
    for (const std::string& call : answer.calls) *out << " (" << call << ")";
    *out << " reason " << v1::FinishReason_Name(answer.reason) << " stop \"" << answer.stop
         << "\" tokens " << answer.tokens;
  }
};

class StreamedText : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    InitLogging("test", "error");
    tokenizer_ = GoldenTokenizer(GetParam());
    ASSERT_NE(tokenizer_, nullptr);
    vocabulary_ = static_cast<uint32_t>(tokenizer_->vocab_size()) + kPadding;
    auto chat = ChatTemplate::Parse(kTemplate, "", "");
    ASSERT_TRUE(chat.ok()) << chat.status();
    template_.emplace(*std::move(chat));
    format_.emplace(kTemplate);
    ASSERT_EQ(format_->reasoning_name(), "think");
    ASSERT_EQ(format_->tool_call_name(), "hermes");
    const auto dialect =
        std::find(std::begin(kDialects), std::end(kDialects), std::string(GetParam())) -
        std::begin(kDialects);
    for (size_t i = 0; i < kAnswers; ++i)
      scripts_.push_back(
          MakeScript(static_cast<uint32_t>(static_cast<size_t>(dialect) * kAnswers + i)));
    StartService();
  }

  void TearDown() override {
    server_.reset();
    engine_.reset();
  }

  Script MakeScript(uint32_t seed) const {
    std::mt19937 random(seed);
    Script script;
    script.chat = random() % 2 == 0;
    script.tools = script.chat && random() % 4 > 0;
    script.thinking = script.chat && random() % 2 == 0;
    script.skip_special = script.chat || random() % 2 == 0;
    script.ignore_eos = random() % 2 == 0;
    script.include_stop = random() % 3 == 0;
    std::string text = RandomText(random, 14);
    if (script.tools && random() % 3 == 0) {
      if (script.thinking) text += "</think>";
      absl::StrAppend(&text, RandomText(random, 3), kCall, RandomText(random, 5));
    }
    const auto ids =
        tokenizer_->Encode(text, {.add_special = false, .parse_special = random() % 3 == 0});
    EXPECT_TRUE(ids.ok()) << ids.status();
    script.tokens = *ids;
    if (script.tokens.size() > 160) script.tokens.resize(160);  // may cut a character
    // Any tokens in between: parts of characters, control tokens, ids that nobody knows.
    const uint32_t strangers = random() % 3 == 0 ? 1 + random() % 6 : 0;
    for (uint32_t i = 0; i < strangers || script.tokens.empty(); ++i) {
      const auto place = static_cast<ptrdiff_t>(random() % (script.tokens.size() + 1));
      script.tokens.insert(script.tokens.begin() + place,
                           static_cast<int32_t>(random() % vocabulary_));
    }
    const std::string shown = tokenizer_->Decode(script.tokens, script.skip_special);
    for (uint32_t n = random() % 4; n > 0; --n) {
      std::string stop =
          random() % 4 == 0 ? kPool[random() % std::size(kPool)] : RandomPiece(random, shown, 5);
      if (random() % 16 == 0) stop = "\uFFFD";
      if (random() % 4 == 0) stop += kPool[random() % std::size(kPool)];  // begins only
      if (!stop.empty() && stop.size() <= 256) script.stops.push_back(stop);
    }
    if (random() % 4 == 0)
      script.stop_tokens.push_back(script.tokens[random() % script.tokens.size()]);
    return script;
  }

  void StartService() {
    FakeExecutor::Options group;
    group.worker.vocab_size = vocabulary_;
    group.worker.next_token = [this](absl::Span<const uint32_t> history,
                                     const internal::SamplingParams& sampling) {
      // The first token of an answer tells how long the prompt is.
      const size_t prompt =
          prompt_tokens_.try_emplace(sampling.seed(), history.size()).first->second;
      const Ids& tokens = scripts_.at(sampling.seed()).tokens;
      return static_cast<uint32_t>(tokens.at(history.size() - prompt));
    };
    executor_.emplace(std::move(group));
    Engine::Options options;
    options.max_running = 16;
    options.context_tokens = 2048;
    options.vocab_size = vocabulary_;
    engine_ = Engine::Create(options, tokenizer_.get(), &*executor_, &metrics_);
    engine_->Start();
    AwaitTrue("a group that is ready",
              [this] { return engine_->Stats().group == EngineStats::GroupState::kReady; });

    model_.names = {"model"};
    model_.context_tokens = options.context_tokens;
    model_.vocabulary_size = vocabulary_;
    model_.tokenizer = tokenizer_.get();
    model_.chat_template = &*template_;
    model_.output_format = &*format_;
    FrontendServer::Options frontend;
    frontend.admin.group = [] { return GroupSnapshot(); };
    frontend.admin.drain = [](std::optional<absl::Duration>) {};
    auto server = FrontendServer::Start(std::move(frontend), engine_.get(), &model_, &metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  v1::GenerateRequest RequestOf(size_t index) const {
    const Script& script = scripts_[index];
    v1::GenerateRequest request;
    if (script.chat) {
      v1::ChatMessage& message = *request.mutable_chat()->add_messages();
      message.set_role("user");
      message.set_content(absl::StrCat("question ", index));
      if (script.tools) request.mutable_chat()->add_tools()->set_name("get_weather");
      request.mutable_chat()->set_template_variables_json(
          absl::StrCat("{\"enable_thinking\": ", script.thinking ? "true" : "false", "}"));
    } else {
      request.mutable_tokens()->add_ids(static_cast<uint32_t>(index) % vocabulary_);
      request.mutable_output()->set_skip_special_tokens(script.skip_special);
    }
    request.set_max_tokens(static_cast<uint32_t>(script.tokens.size()));
    request.mutable_sampling()->set_seed(index);
    request.mutable_stop()->set_ignore_eos(script.ignore_eos);
    request.mutable_stop()->set_include_matched(script.include_stop);
    for (const std::string& stop : script.stops) request.mutable_stop()->add_strings(stop);
    for (const int32_t token : script.stop_tokens)
      request.mutable_stop()->add_token_ids(static_cast<uint32_t>(token));
    return request;
  }

  // By definition, from all the tokens at once.
  Answer Expected(const Script& script) const {
    Ids visible;
    if (script.chat) {
      for (const std::string_view marker : format_->Markers(script.tools)) {
        if (const auto id = tokenizer_->TokenToId(marker)) visible.push_back(*id);
      }
    }
    Ids ends = script.stop_tokens;
    if (!script.ignore_eos)
      ends.insert(ends.end(), tokenizer_->eos_ids().begin(), tokenizer_->eos_ids().end());
    const auto end =
        std::find_first_of(script.tokens.begin(), script.tokens.end(), ends.begin(), ends.end());
    const bool ended = end != script.tokens.end();
    const size_t kept =
        static_cast<size_t>(end - script.tokens.begin()) + (ended && script.include_stop ? 1 : 0);

    std::string bytes, text;
    std::vector<size_t> certain;  // [i]: bytes of text that the first i + 1 tokens make certain
    for (size_t i = 0; i < kept; ++i) {
      const int32_t id = script.tokens[i];
      const bool hidden = script.skip_special && tokenizer_->IsSpecial(id) &&
                          std::find(visible.begin(), visible.end(), id) == visible.end();
      if (!hidden) bytes += tokenizer_->TokenBytes(id);
      std::string so_far;
      AppendUtf8Lossy(bytes, /*keep_incomplete_tail=*/true, &so_far);
      certain.push_back(so_far.size());
    }
    AppendUtf8Lossy(bytes, /*keep_incomplete_tail=*/false, &text);
    if (visible.empty()) {
      EXPECT_EQ(text, tokenizer_->Decode(absl::MakeConstSpan(script.tokens).subspan(0, kept),
                                         script.skip_special));
    }

    Answer answer;
    answer.reason = ended ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH;
    answer.tokens = static_cast<uint32_t>(ended ? end - script.tokens.begin() + 1
                                                : static_cast<ptrdiff_t>(script.tokens.size()));
    // The stop string that ends first; of those the longest.
    size_t best_end = std::string::npos, best_begin = 0;
    for (const std::string& stop : script.stops) {
      const size_t begin = text.find(stop);
      if (begin == std::string::npos) continue;
      const size_t stop_end = begin + stop.size();
      if (stop_end < best_end || (stop_end == best_end && begin < best_begin)) {
        best_end = stop_end;
        best_begin = begin;
        answer.stop = stop;
      }
    }
    if (best_end != std::string::npos) {
      answer.reason = v1::FINISH_REASON_STOP;
      for (size_t i = 0; i < certain.size(); ++i) {
        if (certain[i] < best_end) continue;
        answer.tokens = static_cast<uint32_t>(i + 1);
        break;
      }
      text.resize(script.include_stop ? best_end : best_begin);
    }
    TakeApart(script, text, answer);
    return answer;
  }

  // The whole text, in one piece, into text, reasoning and calls.
  void TakeApart(const Script& script, const std::string& text, Answer& answer) const {
    std::unique_ptr<OutputParser> parser;
    if (script.chat) {
      auto tools = std::make_shared<std::vector<ChatTool>>();
      if (script.tools) tools->push_back({.name = "get_weather"});
      parser = format_->Make(
          {.prompt = script.thinking ? kOpenedPrompt : kClosedPrompt, .tools = tools});
    }
    OutputPieces pieces;
    if (parser == nullptr) {
      pieces.Text(text);
    } else {
      parser->Push(text, &pieces);
      parser->Finish(&pieces);
    }
    for (const OutputPiece& piece : pieces.Take()) {
      if (piece.kind == OutputPiece::Kind::kText) answer.text += piece.raw;
      if (piece.kind == OutputPiece::Kind::kReasoning) answer.reasoning += piece.raw;
      if (piece.kind != OutputPiece::Kind::kToolCall) continue;
      if (!piece.name.empty()) answer.calls.push_back(piece.name + " ");
      answer.calls.at(piece.call) += piece.arguments;
    }
    if (answer.reason == v1::FINISH_REASON_STOP && answer.stop.empty() &&
        pieces.complete_calls() > 0) {
      answer.reason = v1::FINISH_REASON_TOOL_CALLS;
    }
  }

  // As the client gets it; `pieces` counts the messages with tokens.
  Answer Streamed(v1::Inference::Stub& stub, size_t index, std::atomic<uint64_t>* pieces) const {
    grpc::ClientContext context;
    const auto stream = stub.Generate(&context, RequestOf(index));
    Answer answer;
    v1::GenerateResponse message;
    bool finished = false;
    while (stream->Read(&message)) {
      EXPECT_FALSE(finished) << "answer " << index << ": a message after the last one";
      EXPECT_EQ(message.token_index(), answer.tokens) << "answer " << index;
      answer.tokens += message.token_count();
      *pieces += message.token_count() > 0 ? 1 : 0;
      for (const std::string* part :
           {&message.text(), &message.reasoning(), &message.tool_call().arguments_json()}) {
        EXPECT_EQ(FirstInvalidUtf8(*part), std::nullopt) << "answer " << index;
      }
      answer.text += message.text();
      answer.reasoning += message.reasoning();
      if (message.has_tool_call()) {
        const v1::ToolCall& call = message.tool_call();
        if (call.has_name()) {
          EXPECT_EQ(call.index(), answer.calls.size());
          answer.calls.push_back(call.name() + " ");
        }
        if (call.index() < answer.calls.size()) answer.calls[call.index()] += call.arguments_json();
      }
      if (message.has_finished()) {
        finished = true;
        answer.reason = message.finished().reason();
        answer.stop = message.finished().stop();
        EXPECT_EQ(message.finished().usage().completion_tokens(), answer.tokens);
      }
    }
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << "answer " << index << ": " << status.error_message();
    EXPECT_TRUE(finished) << "answer " << index;
    return answer;
  }

  NullEngineMetrics metrics_;
  std::unique_ptr<Tokenizer> tokenizer_;
  uint32_t vocabulary_ = 0;
  std::optional<ChatTemplate> template_;
  std::optional<OutputFormat> format_;
  std::vector<Script> scripts_;                         // constant once the service runs
  std::unordered_map<uint64_t, size_t> prompt_tokens_;  // of the executor's thread
  std::optional<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  ServedModel model_;
  std::unique_ptr<FrontendServer> server_;
};

TEST_P(StreamedText, IsWhatTheTokensSayAllAtOnce) {
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->ports().inference),
                                           grpc::InsecureChannelCredentials());
  const auto stub = v1::Inference::NewStub(channel);
  std::vector<Answer> streamed(kAnswers);
  std::atomic<uint64_t> pieces{0};
  std::vector<std::thread> callers;
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t i = caller; i < kAnswers; i += kCallers)
        streamed[i] = Streamed(*stub, i, &pieces);
    });
  }
  for (std::thread& caller : callers) caller.join();

  uint64_t stopped = 0, reasoned = 0, called = 0, replaced = 0;
  for (size_t i = 0; i < kAnswers; ++i) {
    const Answer expected = Expected(scripts_[i]);
    ASSERT_EQ(streamed[i], expected) << GetParam() << ", answer " << i;
    stopped += expected.stop.empty() ? 0 : 1;
    reasoned += expected.reasoning.empty() ? 0 : 1;
    called += expected.calls.empty() ? 0 : 1;
    replaced += expected.text.find("\uFFFD") == std::string::npos ? 0 : 1;
  }
  // Everything that the test is about has happened.
  EXPECT_GT(stopped, kAnswers / 20);
  EXPECT_GT(reasoned, kAnswers / 20);
  EXPECT_GT(called, kAnswers / 40);
  EXPECT_GT(replaced, kAnswers / 50);
  EXPECT_GT(pieces, kAnswers * 3 / 2) << "answers came whole, nothing was streamed";
}

INSTANTIATE_TEST_SUITE_P(Dialects, StreamedText, testing::ValuesIn(kDialects),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace bitshard
