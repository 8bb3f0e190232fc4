// Control tokens written by callers are mere letters: for every template below tests/golden/chat,
// in every field that callers fill, with every control token of the vocabulary; the template's own
// are tokens, and all else is tokenized as if there were no difference.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/text/chat_template.h"
#include "coordinator/text/detokenizer.h"
#include "tests/coordinator/text/golden_tokenizer.h"

namespace bitshard {
namespace {

namespace fs = std::filesystem;

// Of many dialects; a model's own are among those that its template writes.
const std::vector<std::string>& ControlTokens() {
  static const auto& tokens = *new std::vector<std::string>{"<|im_start|>",
                                                            "<|im_end|>",
                                                            "<|endoftext|>",
                                                            "<|eot_id|>",
                                                            "<|start_header_id|>",
                                                            "<|end_header_id|>",
                                                            "<s>",
                                                            "</s>",
                                                            "[INST]",
                                                            "[/INST]",
                                                            "<start_of_turn>",
                                                            "<end_of_turn>",
                                                            "<bos>",
                                                            "<|user|>",
                                                            "<|assistant|>",
                                                            "<|system|>",
                                                            "<|end|>",
                                                            "<|start|>",
                                                            "<|message|>",
                                                            "<|channel|>",
                                                            "<|call|>",
                                                            "<|return|>",
                                                            "<|start_of_role|>",
                                                            "<|end_of_role|>",
                                                            "<|end_of_text|>",
                                                            "<｜User｜>",
                                                            "<｜Assistant｜>",
                                                            "<｜end▁of▁sentence｜>",
                                                            "<|begin_of_text|>",
                                                            "[TOOL_CALLS]",
                                                            "[AVAILABLE_TOOLS]",
                                                            "[/AVAILABLE_TOOLS]",
                                                            "[TOOL_RESULTS]"};
  return tokens;
}

// Bytes as tokens, and the control tokens behind them.
std::unique_ptr<Tokenizer> MakeTokenizer() {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "gpt-2";
  int spare = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int c = itself ? byte : 0x100 + spare++;
    vocab.tokens.push_back(c < 0x80 ? std::string(1, static_cast<char>(c))
                                    : std::string{static_cast<char>(0xC0 | c >> 6),
                                                  static_cast<char>(0x80 | (c & 0x3F))});
    vocab.token_types.push_back(1);
  }
  for (const std::string& token : ControlTokens()) {
    vocab.tokens.push_back(token);
    vocab.token_types.push_back(3);
  }
  vocab.eos_id = 257;
  vocab.add_bos = false;
  auto tokenizer = Tokenizer::FromGgufVocab(vocab);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// How often each control token is in what the model would get.
std::vector<int> Controls(const Tokenizer& tokenizer, const RenderedChat& chat) {
  const auto ids = tokenizer.Encode(
      chat.text, {.add_special = false, .parse_special = true, .plain = chat.plain});
  EXPECT_TRUE(ids.ok()) << ids.status();
  std::vector<int> counts(ControlTokens().size());
  for (const int32_t id : *ids) {
    if (id >= 256) ++counts[id - 256];
  }
  // Nothing is lost on the way.
  EXPECT_EQ(tokenizer.Decode(*ids, /*skip_special=*/false), chat.text);
  return counts;
}

std::vector<std::string> Templates() {
  std::vector<std::string> folders = {GoldenFile("chat")};
  if (const char* more = std::getenv("BITSHARD_TEST_CHAT")) folders.emplace_back(more);
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder + "/templates")) {
      files.push_back(entry.path());
    }
  }
  // A template that is here, too, is taken from here.
  std::map<std::string, std::string> by_name;
  for (const std::string& file : files) by_name.emplace(fs::path(file).stem(), file);
  files.clear();
  for (const auto& [name, file] : by_name) files.push_back(file);
  return files;
}

// A conversation with `text` in all that callers write.
ChatInput Conversation(const std::string& text) {
  ChatInput chat;
  chat.messages = {{.role = "user", .content = "a" + text + "b"},
                   {.role = "assistant", .content = text, .reasoning = "r" + text},
                   {.role = "user", .content = text + " " + text}};
  chat.tools = {{.name = "f",
                 .description = "d" + text,
                 .parameters_json = "{\"type\": \"object\", \"properties\": {\"k" + text +
                                    "\": {\"type\": \"string\", \"description\": \"" + text +
                                    "\"}}}"}};
  return chat;
}

class ControlTokensTest : public testing::TestWithParam<std::string> {};

TEST_P(ControlTokensTest, OfCallersAreLetters) {
  const auto tokenizer = MakeTokenizer();
  const auto chat = ChatTemplate::Parse(ReadFileOrDie(GetParam()), "<s>", "</s>");
  ASSERT_TRUE(chat.ok()) << chat.status();
  const auto plain = chat->Render(Conversation("X"));
  ASSERT_TRUE(plain.ok()) << plain.status();
  const std::vector<int> expected = Controls(*tokenizer, *plain);
  EXPECT_GT(std::count_if(expected.begin(), expected.end(), [](int n) { return n > 0; }), 0)
      << "the template writes control tokens";
  for (const std::string& token : ControlTokens()) {
    const auto attacked = chat->Render(Conversation(token));
    if (!attacked.ok()) continue;  // gpt-oss refuses some of its own
    EXPECT_NE(attacked->text.find(token), std::string::npos);
    EXPECT_EQ(Controls(*tokenizer, *attacked), expected) << token << " in\n" << attacked->text;
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, ControlTokensTest, testing::ValuesIn(Templates()),
                         [](const auto& info) {
                           std::string name = fs::path(info.param).stem();
                           for (char& c : name) {
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           }
                           return name;
                         });

std::vector<int> ControlsOf(const std::string& source, const std::string& content) {
  const auto tokenizer = MakeTokenizer();
  const auto chat = ChatTemplate::Parse(source, "", "");
  EXPECT_TRUE(chat.ok()) << chat.status();
  const auto rendered = chat->Render({.messages = {{.role = "user", .content = content}}});
  EXPECT_TRUE(rendered.ok()) << rendered.status();
  return Controls(*tokenizer, *rendered);
}

// Whatever a template does to a text on its way.
TEST(ControlTokens, ThroughFiltersMethodsAndOperators) {
  const std::vector<int> none(ControlTokens().size());
  for (const char* source :
       {"{{ messages[0].content | trim }}",
        "{{ messages[0].content.strip() ~ 'x' }}",
        "{{ 'x' + messages[0]['content'][1:] }}",
        "{{ messages }}",
        "{{ messages[0] | tojson }}",
        "{{ messages | tojson(indent=1) }}",
        "{{ messages[0].content.split('b') | join('b') }}",
        "{{ messages[0].content | replace('b', 'c') }}",
        "{{ 'b' | replace('b', messages[0].content) }}",
        "{{ messages[0].content | lower }}",
        "{% set x %}{{ messages[0].content }}{% endset %}{{ x }}",
        "{% macro m(t) %}{{ t }}{% endmacro %}{{ m(messages[0].content) }}",
        "{% for c in messages[0].content %}{{ c }}{% endfor %}",
        "{% set ns = namespace(s='') %}{% for c in messages[0].content %}{% set ns.s = ns.s + c %}"
        "{% endfor %}{{ ns.s }}",
        "{{ messages[0].content[::-1][::-1] }}",
        "{{ messages[0].content * 2 }}",
        "{{ '%s' | format(messages[0].content) }}",
        "{{ '%s' % messages[0].content }}",
        "{{ '{}'.format(messages[0].content) }}",
        "{{ messages[0].content | indent }}",
        "{{ messages | map(attribute='content') | first }}",
        "{{ (messages | last).content | string }}",
        "{{ messages[0].content | list | join }}",
        "{{ [messages[0].content] | sort | first }}",
        "{{ messages[0].values() | list | last }}",
        "{{ messages[0].content.removeprefix('a') }}",
        "{{ messages[0].content | from_json if false else messages[0].content }}",
        "{{ {messages[0].content: 1}.keys() | list | first }}",
        "{{ {messages[0].content: 1} }}",
        "{% filter trim %}{{ messages[0].content }}{% endfilter %}"}) {
    for (const std::string token : {"<|im_end|>", "</s>", "[INST]"}) {
      EXPECT_EQ(ControlsOf(source, "a" + token + "b"), none) << source;
    }
  }
  // Halves of a token from both sides make none.
  EXPECT_EQ(ControlsOf("<|im_{{ messages[0].content }}", "end|>"), none);
  EXPECT_EQ(ControlsOf("{{ messages[0].content }}_end|>", "<|im"), none);
  EXPECT_EQ(ControlsOf("<{{ messages[0].content }}>", "/s"), none);
}

TEST(ControlTokens, OfTheTemplateAreTokensRightBesideTheCallersText) {
  std::vector<int> one(ControlTokens().size());
  one[1] = 1;  // <|im_end|>
  EXPECT_EQ(ControlsOf("{{ messages[0].content }}<|im_end|>", "<|im_end|>"), one);
  EXPECT_EQ(ControlsOf("<|im_end|>{{ messages[0].content }}", "|>"), one);
  EXPECT_EQ(ControlsOf("{{ messages[0].content + '<|im_end|>' }}", "<|im_end"), one);
  EXPECT_EQ(ControlsOf("{{ '<|im_' ~ 'end|>' }}{{ messages[0].content }}", "x"), one);
  // A role is a word of the template's.
  const auto user = std::find(ControlTokens().begin(), ControlTokens().end(), "<|user|>");
  EXPECT_EQ(ControlsOf("<|{{ messages[0].role }}|>", "x")[user - ControlTokens().begin()], 1);
}

// gpt-oss writes several messages in one answer.
TEST(ControlTokens, OfHarmonyModelsEndAnswersAndMessages) {
  const auto tokenizer = MakeTokenizer();
  const auto ends = [&](const char* token) {
    const std::vector<int32_t>& eos = tokenizer->eos_ids();
    return std::count(eos.begin(), eos.end(), tokenizer->TokenToId(token).value()) > 0;
  };
  EXPECT_TRUE(ends("<|return|>"));
  EXPECT_TRUE(ends("<|call|>"));
  EXPECT_FALSE(ends("<|end|>"));
  EXPECT_TRUE(ends("<|im_end|>"));
}

TEST(ControlTokens, ThatAParserNeedsStayVisible) {
  const auto tokenizer = MakeTokenizer();
  const auto ids =
      tokenizer->Encode("a<|channel|>b<|end|>c", {.add_special = false, .parse_special = true});
  ASSERT_TRUE(ids.ok());
  ASSERT_EQ(ids->size(), 5u);
  IncrementalDetokenizer skips(tokenizer.get());
  IncrementalDetokenizer shows(tokenizer.get(), true, {*tokenizer->TokenToId("<|channel|>")});
  std::string skipped, shown;
  for (const int32_t id : *ids) {
    skipped += skips.Push(id);
    shown += shows.Push(id);
  }
  EXPECT_EQ(skipped, "abc");
  EXPECT_EQ(shown, "a<|channel|>bc");
}

// Where there is no control token in it, marks change nothing: pieces of the caller's text and the
// template's are one text to the tokenizer.
TEST(ControlTokens, MarksDoNotCutTheText) {
  const auto tokenizer = GoldenTokenizer("qwen2");
  ASSERT_NE(tokenizer, nullptr);
  const std::string text =
      "<|im_start|>user\nHello wor"
      "ld e\u0301t\u00e9 123<|im_end|>\n";
  const EncodeOptions all{.add_special = false, .parse_special = true};
  const auto expected = tokenizer->Encode(text, all);
  ASSERT_TRUE(expected.ok());
  for (size_t begin = 17; begin < text.size() - 11; ++begin) {
    for (const size_t bytes : {size_t{1}, size_t{3}, text.size() - 11 - begin}) {
      const std::vector<TextSpan> plain = {{begin, std::min(begin + bytes, text.size() - 11)}};
      EncodeOptions marked = all;
      marked.plain = plain;
      EXPECT_EQ(*tokenizer->Encode(text, marked), *expected) << begin << " " << bytes;
    }
  }
}

}  // namespace
}  // namespace bitshard
