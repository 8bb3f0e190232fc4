// Reasoning and calls of tools taken out of what models write: each dialect by example, by
// generated answers that must come back as they were made, and by random pieces of its notation, of
// which no byte may be lost, however the text is cut.
#include "coordinator/text/output_parser.h"

#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "coordinator/text/utf8.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using Kind = OutputPiece::Kind;

// What makes OutputFormat choose the dialect: the words of its notation.
struct Dialect {
  std::string name;
  std::string source;
  std::vector<std::string> notation;  // that random answers are made of
};

const std::vector<Dialect>& Dialects() {
  static const auto& dialects = *new std::vector<Dialect>{
      {"hermes",
       "<tool_call>",
       {"<tool_call>", "</tool_call>", R"({"name": "f", "arguments": {}})"}},
      {"qwen3_coder",
       "<tool_call><function=",
       {"<tool_call>", "</tool_call>", "<function=", "f>", "</function>", "<parameter=", "n>",
        "</parameter>", "12"}},
      {"llama3_json",
       "<|start_header_id|> <|python_tag|>",
       {"<|python_tag|>", R"({"name": "f", "parameters": {"n": 1}})", ";", "{"}},
      {"mistral",
       "[TOOL_CALLS]",
       {"[TOOL_CALLS]", "[", "]", ",", R"({"name": "f", "arguments": {"a": "b"}, "id": "x"})", "f",
        "[ARGS]", "{}"}},
      {"granite", "<|tool_call|>", {"<|tool_call|>", "[", "]", R"({"name":"f","arguments":{}})"}},
      {"deepseek",
       "<｜tool▁call▁begin｜>",
       {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>", "function", "f", "\n```json\n", "```", "{\"n\": [1, 2.5e3]}"}},
      {"harmony",
       "<|channel|> <|message|>",
       {"<|start|>", "assistant", "<|channel|>", "analysis", "final", "commentary",
        " to=functions.f", "<|message|>", "<|end|>", "<|call|>", "{\"n\": null}"}},
      {"think", "</think>", {"<think>", "</think>", "because"}},
      {"think_response",
       "</think> </response>",
       {"<think>", "</think>", "<response>", "</response>"}},
      {"think with hermes",
       "</think> <tool_call>",
       {"<think>", "</think>", "<tool_call>", "</tool_call>",
        R"({"name": "f", "arguments": {"x": "\u00e9\"}"}})"}},
  };
  return dialects;
}

std::shared_ptr<const std::vector<ChatTool>> Tools() {
  return std::make_shared<const std::vector<ChatTool>>(std::vector<ChatTool>{
      {.name = "f",
       .description = "d",
       .parameters_json = R"({"type": "object", "properties": {"n": {"type": "integer"},
           "s": {"type": "string"}, "o": {"type": "object"}, "b": {"type": ["boolean", "null"]}}})"},
      {.name = "get_weather"}});
}

// Pieces of `text` cut at `cuts`.
std::vector<OutputPiece> Parse(std::string_view source, std::string_view text,
                               const std::vector<size_t>& cuts = {}, std::string_view prompt = "") {
  const OutputFormat format(source);
  const auto parser = format.Make({.prompt = prompt, .tools = Tools()});
  EXPECT_NE(parser, nullptr) << source;
  OutputPieces pieces;
  size_t begin = 0;
  std::vector<OutputPiece> all;
  const auto take = [&] {
    for (OutputPiece& piece : pieces.Take()) {
      EXPECT_FALSE(FirstInvalidUtf8(piece.raw).has_value()) << "a piece cuts a character";
      EXPECT_FALSE(FirstInvalidUtf8(piece.arguments).has_value());
      const bool joins = !all.empty() && all.back().kind == piece.kind && piece.name.empty() &&
                         all.back().call == piece.call;
      if (!joins) {
        all.push_back(std::move(piece));
        continue;
      }
      all.back().raw += piece.raw;
      all.back().arguments += piece.arguments;
      all.back().complete |= piece.complete;
    }
  };
  for (const size_t cut : cuts) {
    parser->Push(text.substr(begin, cut - begin), &pieces);
    take();
    begin = cut;
  }
  parser->Push(text.substr(begin), &pieces);
  parser->Finish(&pieces);
  take();
  return all;
}

struct Seen {
  std::string text, reasoning;
  std::vector<std::string> calls;  // "name arguments", with '…' behind what is not complete
  std::string raw;
};

Seen See(const std::vector<OutputPiece>& pieces) {
  Seen seen;
  for (const OutputPiece& piece : pieces) {
    seen.raw += piece.raw;
    if (piece.kind == Kind::kText) seen.text += piece.raw;
    if (piece.kind == Kind::kReasoning) seen.reasoning += piece.raw;
    if (piece.kind != Kind::kToolCall) continue;
    if (!piece.name.empty()) {
      EXPECT_EQ(piece.call, seen.calls.size());
      seen.calls.push_back(piece.name + " ");
    }
    EXPECT_FALSE(seen.calls.empty());
    seen.calls.back() += piece.arguments + (piece.complete ? "" : "…");
  }
  return seen;
}

TEST(OutputFormat, IsChosenByTheTemplatesText) {
  for (const Dialect& dialect : Dialects()) {
    const OutputFormat format(dialect.source);
    const std::string names = std::string(format.reasoning_name()) +
                              (format.reasoning_name().empty() ? "" : " ") +
                              std::string(format.tool_call_name());
    EXPECT_NE(names.find(dialect.name.substr(0, dialect.name.find(' '))), std::string::npos)
        << names;
  }
  const OutputFormat none("{{ messages }}");
  EXPECT_EQ(none.reasoning_name(), "");
  EXPECT_EQ(none.tool_call_name(), "");
  EXPECT_EQ(none.Make({.prompt = "", .tools = Tools()}), nullptr);
  // Without tools an answer that looks like a call is text.
  const OutputFormat hermes("<tool_call>");
  EXPECT_EQ(hermes.Make({.prompt = "", .tools = std::make_shared<const std::vector<ChatTool>>()}),
            nullptr);
}

TEST(OutputParser, ReadsCallsOfEveryDialect) {
  const std::string weather = R"(get_weather {"city": "Oslo", "days": 2})";
  const std::string arguments = R"({"city": "Oslo", "days": 2})";
  const std::string object = R"({"name": "get_weather", "arguments": )" + arguments + "}";
  const auto expect = [&](const std::string& source, const std::string& text,
                          const std::vector<std::string>& calls, const std::string& answer) {
    const Seen seen = See(Parse(source, text));
    EXPECT_EQ(seen.calls, calls) << text;
    EXPECT_EQ(seen.text, answer) << text;
    EXPECT_EQ(seen.raw, text);
  };
  expect("<tool_call>", "Let me look.\n<tool_call>\n" + object + "\n</tool_call>", {weather},
         "Let me look.");
  expect("<tool_call>",
         "<tool_call>" + object + "</tool_call>\n<tool_call>" + object + "</tool_call>\n",
         {weather, weather}, "");
  // The end marker is a control token in some models and not shown; arguments may come first.
  expect("<tool_call>",
         "<tool_call>\n{\"arguments\": " + arguments + ", \"name\": \"get_weather\"}", {weather},
         "");
  expect("<tool_call>", R"(<tool_call>{"name": "f", "arguments": "{\"n\": 1}"}</tool_call>)",
         {R"(f {"n": 1})"}, "");
  expect("<tool_call>", R"(<tool_call>{"name": "f"}</tool_call>)", {"f {}"}, "");
  expect(
      "<tool_call><function=",
      "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n<parameter=s>\n7\n"
      "</parameter>\n<parameter=o>\n{\"a\": 1}\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n"
      "<parameter=new>\nline \"1\"\nline 2\n</parameter>\n</function>\n</tool_call>",
      {R"(f {"n": 7, "s": "7", "o": {"a": 1}, "b": true, "new": "line \"1\"\nline 2"})"}, "");
  expect("<tool_call><function=", "<function=f></function>", {"f {}"}, "");
  expect("<|start_header_id|> <|python_tag|>",
         R"({"name": "get_weather", "parameters": )" + arguments + "}", {weather}, "");
  expect("<|start_header_id|> <|python_tag|>",
         R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"n": 1}})",
         {"f {}", R"(f {"n": 1})"}, "");
  expect("[TOOL_CALLS]", "[TOOL_CALLS][" + object + ", " + object + "]", {weather, weather}, "");
  expect("[TOOL_CALLS]", "[TOOL_CALLS]get_weather[ARGS]" + arguments, {weather}, "");
  expect("<|tool_call|>", "<|tool_call|>[" + object + "]", {weather}, "");
  expect("<｜tool▁call▁begin｜>",
         "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" + arguments +
             "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         {weather}, "Sure.");
  expect("<｜tool▁call▁begin｜>",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n" +
             arguments +
             "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
             "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         {weather, "f {}"}, "");
  expect("<|channel|> <|message|>",
         "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>" + arguments +
             "<|call|>",
         {weather}, "");
  expect("<|channel|> <|message|>",
         " to=functions.get_weather<|channel|>commentary json<|message|>" + arguments, {weather},
         "");
}

TEST(OutputParser, SeparatesReasoning) {
  const auto expect = [](const std::string& source, const std::string& prompt,
                         const std::string& text, const std::string& reasoning,
                         const std::string& answer) {
    const Seen seen = See(Parse(source, text, {}, prompt));
    EXPECT_EQ(seen.reasoning, reasoning) << text;
    EXPECT_EQ(seen.text, answer) << text;
    EXPECT_EQ(seen.raw, text);
  };
  expect("</think>", "", "<think>\nhmm\n\nwell\n</think>\n\nYes.\n", "hmm\n\nwell", "Yes.\n");
  expect("</think>", "<|im_start|>assistant\n<think>\n", "hmm</think>Yes.", "hmm", "Yes.");
  expect("</think>", "<think>\n\n</think>\n\n", "Yes.", "", "Yes.");
  expect("</think>", "", "Yes, <think> is a tag.", "", "Yes, <think> is a tag.");
  expect("</think>", "<think>", "cut < short </th", "cut < short </th", "");
  expect("</think> </response>", "", "<think>a</think><response>b</response>", "a", "b");
  expect("</think> </response>", "", "<think>a</think>b", "a", "b");
  expect(
      "<|channel|> <|message|>", "<|start|>assistant",
      "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
      "hmm", "Yes.");
  expect("<|channel|> <|message|>", "<|start|>assistant", "Just text.", "", "Just text.");
}

TEST(OutputParser, WhatIsMalformedIsText) {
  for (const auto& [source, text] : std::vector<std::pair<std::string, std::string>>{
           {"<tool_call>", "a <tool_call>nonsense</tool_call> b"},
           {"<tool_call>", "<tool_call>{\"arguments\": {}}</tool_call>"},
           {"<tool_call>", "<tool_call>{\"name\": 5, \"arguments\": {}}"},
           {"<tool_call>", "<tool_call>{\"name\": \"f\""},
           {"<tool_call>", "1 < 2 <tool"},
           {"<|start_header_id|> <|python_tag|>", R"({"name": "unknown", "parameters": {}})"},
           {"<|start_header_id|> <|python_tag|>", R"({"answer": 5})"},
           {"<|start_header_id|> <|python_tag|>", R"(<|python_tag|>print("x"))"},
           {"[TOOL_CALLS]", "[TOOL_CALLS] none needed"},
           {"<tool_call><function=", "<tool_call>\n<parameter=n>"},
           {"<｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>no JSON"},
           {"<|channel|> <|message|>", "<|channel|>commentary to=functions.f<|message|>no JSON"}}) {
    const Seen seen = See(Parse(source, text));
    EXPECT_EQ(seen.text, text);
    EXPECT_THAT(seen.calls, ElementsAre());
  }
  // What was streamed stays; the rest is text.
  const Seen broken =
      See(Parse("<tool_call>", R"(<tool_call>{"name": "f", "arguments": {"a": ]})"));
  EXPECT_THAT(broken.calls, ElementsAre(R"(f {"a": …)"));
  EXPECT_EQ(broken.text, "]}");
  // A call behind one that is none is found.
  const Seen second = See(Parse(
      "<tool_call>", R"(<tool_call>oops <tool_call>{"name": "f", "arguments": {}}</tool_call>)"));
  EXPECT_THAT(second.calls, ElementsAre("f {}"));
  EXPECT_EQ(second.text, "<tool_call>oops");
}

TEST(OutputParser, ArgumentsAreStreamed) {
  const OutputFormat format("<tool_call>");
  const auto parser = format.Make({.prompt = "", .tools = Tools()});
  OutputPieces pieces;
  parser->Push(R"(<tool_call>{"name": "f", "arguments": {"s": "lo)", &pieces);
  std::vector<OutputPiece> first = pieces.Take();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].name, "f");
  EXPECT_EQ(first[0].arguments, R"({"s": "lo)");
  EXPECT_FALSE(first[0].complete);
  parser->Push(R"(ng"}}</tool_call>)", &pieces);
  first = pieces.Take();
  ASSERT_GE(first.size(), 1u);
  EXPECT_EQ(first[0].name, "");
  EXPECT_EQ(first[0].arguments, R"(ng"})");
  EXPECT_TRUE(first[0].complete);
  EXPECT_EQ(pieces.complete_calls(), 1u);
}

std::vector<size_t> CharacterEnds(const std::string& text) {
  std::vector<size_t> ends;
  for (size_t at = 0; at < text.size();) ends.push_back(at += CodePointAt(text, at).bytes);
  return ends;
}

// Random answers out of a dialect's notation, whole and in pieces: the same pieces come out, and
// together they are the answer.
TEST(OutputParser, NoCutMakesADifferenceAndNoByteIsLost) {
  std::mt19937 random(5);
  const std::vector<std::string> fill = {" ",  "\n", "a", "é",    "{", "}",
                                         "\"", "<",  ">", "日本", "\\"};
  for (const Dialect& dialect : Dialects()) {
    for (int round = 0; round < 400; ++round) {
      std::string text;
      for (int n = 1 + static_cast<int>(random() % 14); n > 0; --n) {
        const bool notation = random() % 3 > 0;
        const auto& words = notation ? dialect.notation : fill;
        const std::string& word = words[random() % words.size()];
        text += random() % 12 > 0 ? word : word.substr(0, word.find_first_of("</ ", 1));
      }
      const std::string prompt = random() % 4 == 0 ? "<think>\n" : "";
      const std::vector<OutputPiece> whole = Parse(dialect.source, text, {}, prompt);
      EXPECT_EQ(See(whole).raw, text) << dialect.name;
      for (const OutputPiece& piece : whole) {
        if (piece.kind == Kind::kToolCall && piece.complete) {
          EXPECT_TRUE(nlohmann::json::accept(piece.arguments)) << dialect.name << ": " << text;
        }
      }
      const std::vector<size_t> ends = CharacterEnds(text);
      std::vector<size_t> some;
      for (const size_t end : ends) {
        if (random() % 3 == 0) some.push_back(end);
      }
      for (const std::vector<size_t>& cuts : {ends, some}) {
        const std::vector<OutputPiece> cut = Parse(dialect.source, text, cuts, prompt);
        ASSERT_EQ(cut.size(), whole.size()) << dialect.name << ": " << text;
        for (size_t i = 0; i < cut.size(); ++i) {
          EXPECT_EQ(cut[i].kind, whole[i].kind) << dialect.name << ": " << text;
          EXPECT_EQ(cut[i].raw, whole[i].raw) << dialect.name << ": " << text;
          EXPECT_EQ(cut[i].name, whole[i].name) << dialect.name << ": " << text;
          EXPECT_EQ(cut[i].arguments, whole[i].arguments) << dialect.name << ": " << text;
          EXPECT_EQ(cut[i].complete, whole[i].complete) << dialect.name << ": " << text;
        }
      }
    }
  }
}

// What callers have been sent of these pieces.
std::string Sent(const std::vector<OutputPiece>& pieces) {
  std::string text, reasoning, calls;
  for (const OutputPiece& piece : pieces) {
    if (piece.kind == Kind::kText) text += piece.raw;
    if (piece.kind == Kind::kReasoning) reasoning += piece.raw;
    if (piece.kind != Kind::kToolCall) continue;
    if (!piece.name.empty()) calls += "\ncall " + piece.name + " " + piece.id + " ";
    calls += piece.arguments + (piece.complete ? " end" : "");
  }
  return "text " + text + "\nreasoning " + reasoning + calls;
}

// An answer that is resumed is pushed in one piece up to where it stopped: what came out up to
// there must be what has been sent.
TEST(OutputParser, WhatIsOutAfterATextDoesNotDependOnItsCuts) {
  std::mt19937 random(6);
  const std::vector<std::string> fill = {" ",  "\n", "a", "é",    "{", "}",
                                         "\"", "<",  ">", "日本", "\\"};
  for (const Dialect& dialect : Dialects()) {
    const OutputFormat format(dialect.source);
    for (int round = 0; round < 60; ++round) {
      std::string text;
      for (int n = 1 + static_cast<int>(random() % 10); n > 0; --n) {
        const auto& words = random() % 3 > 0 ? dialect.notation : fill;
        text += words[random() % words.size()];
      }
      const OutputParserOptions options{.prompt = round % 4 == 0 ? "<think>\n" : "",
                                        .tools = Tools()};
      const auto piecewise = format.Make(options);
      OutputPieces out;
      std::vector<OutputPiece> pieces;
      size_t begin = 0;
      for (const size_t end : CharacterEnds(text)) {
        piecewise->Push(std::string_view(text).substr(begin, end - begin), &out);
        begin = end;
        for (OutputPiece& piece : out.Take()) pieces.push_back(std::move(piece));
        OutputPieces at_once;
        format.Make(options)->Push(std::string_view(text).substr(0, end), &at_once);
        ASSERT_EQ(Sent(at_once.Take()), Sent(pieces))
            << dialect.name << ": " << text.substr(0, end);
      }
    }
  }
}

// Answers made of random parts come back as these parts.
// Answers that begin calls again and again and end none; were each read to its end, the time would
// be that of the square of their length.
TEST(OutputParser, LongAnswersAreReadInOneGo) {
  constexpr std::string_view kQwen = "<tool_call><function=", kHermes = "<tool_call>",
                             kThink = "</think>", kLlama = "<|start_header_id|> <|python_tag|>",
                             kDeepSeek = "<｜tool▁call▁begin｜>",
                             kHarmony = "<|channel|> <|message|>";
  const std::vector<std::pair<std::string_view, std::string>> hostile = {
      {kQwen, "<tool_call><function=f><parameter=n>"},
      {kQwen, "<function=f><parameter=n>"},
      {kQwen, "<function=f>"},
      {kQwen, " <tool_call>\n"},
      {kHermes, "<tool_call>{\"a\":\""},
      {kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\""},
      {"[TOOL_CALLS]", "[TOOL_CALLS][{\"a\":\""},
      {"[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{\"a\":\""},
      {"<|tool_call|>", "<|tool_call|>[{\"a\":\""},
      {kLlama, "<|python_tag|>{\"a\":\""},
      {kLlama, "{"},
      {kDeepSeek, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":\""},
      {kDeepSeek, "<｜tool▁call▁begin｜>"},
      {kHarmony, "<|channel|>commentary to=functions.f<|message|>{\"a\":\""},
      {kHarmony, "<|start|>assistant"},
      {kThink, "<think>"},
      {kThink, " "},
      {"</think> </response>", "\n"},
      {kHermes, " "},
  };
  for (const auto& [source, part] : hostile) {
    std::string text = source == "</think> </response>" ? "<think></think>" : "";
    while (text.size() < 2 << 20) text += part;
    const Seen seen = See(Parse(source, text));
    EXPECT_TRUE(seen.raw == text) << source << ": " << part;
  }
}

TEST(OutputParser, ACallThatTheEndCutsOffHidesNoneAfterIt) {
  const Seen seen = See(Parse("<tool_call><function=",
                              "<function=f><parameter=n>1 <function=get_weather></function> x"
                              "<function=f><parameter=n>2"));
  EXPECT_THAT(seen.calls, ElementsAre("f {…", "get_weather {}", "f {…"));
  EXPECT_EQ(seen.text, "<parameter=n>1x<parameter=n>2");
}

TEST(OutputParser, GeneratedAnswersComeBackAsTheyWereMade) {
  std::mt19937 random(6);
  const std::vector<std::string> words = {"one", "zwölf", "</b>",   "x < y",
                                          "{}",  "[1]",   "日本語", "…"};
  const auto sentence = [&] {
    std::string text = "A";
    for (int n = static_cast<int>(random() % 6); n > 0; --n)
      text += " " + words[random() % words.size()];
    return text + ".";
  };
  const auto arguments = [&] {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (int n = static_cast<int>(random() % 4); n > 0; --n) {
      const std::string key = "k" + std::to_string(random() % 9);
      if (random() % 2 == 0) {
        json[key] = sentence();
      } else {
        json[key] = {static_cast<int>(random() % 99), nullptr, {{"in", sentence()}}, 1.5};
      }
    }
    return json.dump();
  };
  for (int round = 0; round < 300; ++round) {
    const std::string reasoning = sentence(), answer = sentence();
    std::string text = "<think>\n" + reasoning + "\n</think>\n\n" + answer;
    std::vector<std::string> calls;
    for (int n = static_cast<int>(random() % 3); n > 0; --n) {
      const std::string json = arguments();
      calls.push_back("f " + json);
      text += "\n<tool_call>\n{\"name\": \"f\", \"arguments\": " + json + "}\n</tool_call>";
    }
    const Seen seen = See(Parse("</think> <tool_call>", text, CharacterEnds(text)));
    EXPECT_EQ(seen.reasoning, reasoning);
    EXPECT_EQ(seen.text, answer);
    EXPECT_EQ(seen.calls, calls) << text;
  }
}

}  // namespace
}  // namespace bitshard
