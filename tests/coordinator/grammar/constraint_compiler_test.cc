#include "coordinator/grammar/constraint_compiler.h"

#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include "nlohmann/json.hpp"
#include <gtest/gtest.h>
#include <pcre2.h>

#include "kernels/base/check.h"
#include "proto/token_mask.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

using Kind = Constraint::Kind;

std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

// Bytes as tokens, and the real vocabulary of a model, whose tokens cut texts anywhere.
struct Subject {
  explicit Subject(std::unique_ptr<Tokenizer> made, uint32_t vocab_size)
      : tokenizer(std::move(made)),
        vocabulary(VocabularyBytes::Of(*tokenizer, vocab_size, {})),
        compiler(vocabulary) {}

  std::unique_ptr<Tokenizer> tokenizer;
  VocabularyBytes vocabulary;
  ConstraintCompiler compiler;
};

Subject& Bytes() {
  static Subject& subject = *new Subject(MakeByteTokenizer(), kByteTokenizerVocab + 40);
  return subject;
}

Subject& TinyLlama() {
  static Subject& subject = *[] {
    const std::string folder = GoldenModel("tiny-llama");
    auto tokenizer = Tokenizer::FromTokenizerJson(ReadFile(folder + "/tokenizer.json"),
                                                  ReadFile(folder + "/tokenizer_config.json"));
    CHECK_OK(tokenizer.status());
    return new Subject(*std::move(tokenizer), 2048);
  }();
  return subject;
}

std::shared_ptr<const CompiledGrammar> Compile(const Subject& subject,
                                               const Constraint& constraint) {
  auto compiled = subject.compiler.Compile(constraint);
  EXPECT_TRUE(compiled.ok()) << constraint.text << ": " << compiled.status();
  return compiled.ok() ? *compiled : nullptr;
}

std::vector<int32_t> Allowed(const std::string& mask, uint32_t vocab_size) {
  std::vector<int32_t> tokens;
  for (uint32_t t = 0; t < vocab_size; ++t)
    if (MaskAllows(mask, t)) tokens.push_back(static_cast<int32_t>(t));
  return tokens;
}

// A text of tokens drawn at random from the masks alone; nullopt when it has no end in
// `max_tokens`.
std::optional<std::string> Draw(const Subject& subject, const CompiledGrammar& grammar,
                                std::mt19937_64& random, int max_tokens = 2000) {
  const auto matcher = grammar.NewMatcher(/*end_tokens=*/true);
  std::string text, mask;
  for (int i = 0; i < max_tokens; ++i) {
    const bool more = matcher->FillMask(&mask);
    EXPECT_EQ(mask.size(), TokenMaskBytes(subject.vocabulary.vocab_size));
    if (!more) {
      EXPECT_TRUE(matcher->IsTerminated()) << text;
      return text;
    }
    std::vector<int32_t> allowed = Allowed(mask, subject.vocabulary.vocab_size);
    const int32_t end = subject.vocabulary.end_tokens.front();
    const bool may_end = MaskAllows(mask, static_cast<uint32_t>(end));
    EXPECT_EQ(may_end, matcher->IsTerminated()) << text;
    if (may_end && random() % 3 == 0) {
      EXPECT_TRUE(matcher->AcceptToken(end));
      return text;
    }
    int32_t token = end;
    while (token == end) token = allowed[random() % allowed.size()];
    EXPECT_TRUE(matcher->AcceptToken(token));
    text += subject.vocabulary.tokens[static_cast<size_t>(token)];
  }
  return std::nullopt;
}

bool FullMatch(const std::string& pattern, const std::string& text) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_DOTALL | PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                                   &error, &offset, nullptr);
  CHECK(code != nullptr) << pattern;
  pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
  const int matched = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                  0, match, nullptr);
  pcre2_match_data_free(match);
  pcre2_code_free(code);
  return matched > 0;
}

class EachVocabulary : public testing::TestWithParam<bool> {
 protected:
  Subject& subject() { return GetParam() ? TinyLlama() : Bytes(); }
};
INSTANTIATE_TEST_SUITE_P(Constraint, EachVocabulary, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("TinyLlama") : std::string("Bytes");
});

TEST_P(EachVocabulary, DrawnTextsMatchTheRegex) {
  std::mt19937_64 random(1);
  for (const std::string pattern :
       {"[a-z]{3,8}", "(cat|dog|bird)s?", "\\d{4}-\\d{2}-\\d{2}", "[^a-z]{1,5}x", "(ab|a|b)+c",
        "^-?(0|[1-9][0-9]*)(\\.[0-9]+)?$", "über(straße)?", "\\w{1,9}@\\w{1,9}\\.(com|org)",
        ".{1,6}", "(a(b(c)?)?)*d"}) {
    const auto grammar = Compile(subject(), {Kind::kRegex, pattern, {}});
    ASSERT_NE(grammar, nullptr);
    int ended = 0;
    for (int i = 0; i < 30; ++i) {
      const std::optional<std::string> text = Draw(subject(), *grammar, random);
      ended += text.has_value();
      EXPECT_TRUE(FullMatch(pattern, text.value_or(""))) << pattern << ": " << text.value_or("");
    }
    EXPECT_EQ(ended, 30) << pattern;
  }
}

TEST_P(EachVocabulary, DrawnTextsAreChoices) {
  std::mt19937_64 random(2);
  const std::vector<std::string> options = {"yes",     "no",    "yes, but", "\"quoted\\\"",
                                            "a\nb\tc", "naïve", "]|[ # ("};
  const auto grammar = Compile(subject(), {Kind::kChoice, "", options});
  ASSERT_NE(grammar, nullptr);
  std::vector<int> seen(options.size());
  for (int i = 0; i < 300; ++i) {
    const std::optional<std::string> text = Draw(subject(), *grammar, random);
    ASSERT_TRUE(text.has_value());
    const auto found = std::find(options.begin(), options.end(), *text);
    ASSERT_NE(found, options.end()) << *text;
    ++seen[static_cast<size_t>(found - options.begin())];
  }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_GT(seen[i], 0) << options[i];
}

TEST_P(EachVocabulary, DrawnTextsAreOfTheGrammar) {
  std::mt19937_64 random(3);
  // Balanced brackets: no regular expression says that.
  const auto grammar =
      Compile(subject(), {Kind::kGrammar,
                          "root ::= item\n"
                          "item ::= \"[\" item? \"]\" | \"(\" item? \")\" | [0-9]\n",
                          {}});
  ASSERT_NE(grammar, nullptr);
  for (int i = 0; i < 200; ++i) {
    const std::optional<std::string> text = Draw(subject(), *grammar, random);
    ASSERT_TRUE(text.has_value());
    std::string open;
    for (const char c : *text) {
      if (c == '[' || c == '(') open += c == '[' ? ']' : ')';
      if (c == ']' || c == ')') {
        ASSERT_FALSE(open.empty()) << *text;
        ASSERT_EQ(open.back(), c) << *text;
        open.pop_back();
      }
    }
    EXPECT_TRUE(open.empty()) << *text;
  }
}

TEST_P(EachVocabulary, DrawnTextsFitTheSchema) {
  std::mt19937_64 random(4);
  const auto grammar = Compile(subject(), {Kind::kJsonSchema,
                                           R"({
    "type": "object",
    "properties": {
      "name": {"type": "string", "maxLength": 12},
      "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "kind": {"enum": ["cat", "dog", 3, null]},
      "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}
    },
    "required": ["name", "age", "tags"], "additionalProperties": false})",
                                           {}});
  ASSERT_NE(grammar, nullptr);
  int ended = 0, with_kind = 0;
  for (int i = 0; i < 200; ++i) {
    const std::optional<std::string> text = Draw(subject(), *grammar, random);
    if (!text.has_value()) continue;
    ++ended;
    const nlohmann::json value = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(value.is_object()) << *text;
    ASSERT_TRUE(value.contains("name") && value["name"].is_string()) << *text;
    ASSERT_TRUE(value.contains("age") && value["age"].is_number_integer()) << *text;
    EXPECT_GE(value["age"].get<int64_t>(), 0) << *text;
    EXPECT_LE(value["age"].get<int64_t>(), 150) << *text;
    ASSERT_TRUE(value.contains("tags") && value["tags"].is_array()) << *text;
    EXPECT_TRUE(value["tags"].size() >= 1 && value["tags"].size() <= 3) << *text;
    for (const auto& tag : value["tags"]) EXPECT_TRUE(tag.is_boolean()) << *text;
    with_kind += value.contains("kind");
    EXPECT_EQ(value.size(), 3u + value.contains("kind")) << *text;
  }
  EXPECT_EQ(ended, 200);
  EXPECT_GT(with_kind, 0);
}

TEST_P(EachVocabulary, RollbackGivesTheSameMasksAgain) {
  std::mt19937_64 random(5);
  const auto grammar = Compile(subject(), {Kind::kRegex, "(ab|a|[0-9]{2}|é)*x", {}});
  ASSERT_NE(grammar, nullptr);
  const auto matcher = grammar->NewMatcher(true);
  std::vector<std::string> masks(1);
  matcher->FillMask(&masks[0]);
  EXPECT_EQ(masks[0], grammar->FirstMask(true));
  for (int step = 0; step < 60; ++step) {
    std::vector<int32_t> allowed = Allowed(masks.back(), subject().vocabulary.vocab_size);
    std::erase(allowed, subject().vocabulary.end_tokens.front());
    const uint32_t back = random() % 3 == 0 ? static_cast<uint32_t>(random() % masks.size()) : 0;
    if (back > 0 || allowed.empty()) {
      const uint32_t n = allowed.empty() ? static_cast<uint32_t>(masks.size()) - 1 : back;
      matcher->Rollback(n);
      masks.resize(masks.size() - n);
    } else {
      ASSERT_TRUE(matcher->AcceptToken(allowed[random() % allowed.size()]));
      masks.emplace_back();
    }
    std::string mask;
    matcher->FillMask(&mask);
    if (masks.back().empty()) masks.back() = mask;
    ASSERT_EQ(mask, masks.back()) << "step " << step;
  }
}

TEST_P(EachVocabulary, WhatTheMaskForbidsIsNotAccepted) {
  const auto grammar = Compile(subject(), {Kind::kChoice, "", {"abc", "abd"}});
  ASSERT_NE(grammar, nullptr);
  const std::string& first = grammar->FirstMask(true);
  for (uint32_t t = 0; t < subject().vocabulary.vocab_size; ++t) {
    const auto matcher = grammar->NewMatcher(true);
    EXPECT_EQ(matcher->AcceptToken(static_cast<int32_t>(t)), MaskAllows(first, t)) << t;
  }
}

TEST(ConstraintCompiler, WithoutEndTokensNoneIsEverAllowed) {
  const auto grammar = Compile(Bytes(), {Kind::kRegex, "a{1,3}", {}});
  ASSERT_NE(grammar, nullptr);
  const auto matcher = grammar->NewMatcher(/*end_tokens=*/false);
  std::string mask;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(matcher->FillMask(&mask));
    EXPECT_FALSE(MaskAllows(mask, kByteTokenizerEos));
    EXPECT_EQ(matcher->IsTerminated(), i > 0);
    ASSERT_TRUE(matcher->AcceptToken('a'));
  }
  EXPECT_FALSE(matcher->FillMask(&mask));
  EXPECT_TRUE(matcher->IsTerminated());
}

TEST(ConstraintCompiler, ControlTokensAreNoText) {
  // The text of an end token, in a grammar, is not that token.
  const auto grammar = Compile(TinyLlama(), {Kind::kChoice, "", {"<|im_end|>", "<|im_start|>"}});
  ASSERT_NE(grammar, nullptr);
  for (const int32_t token : Allowed(grammar->FirstMask(true), 2048))
    EXPECT_FALSE(TinyLlama().tokenizer->IsSpecial(token)) << token;
}

TEST(ConstraintCompiler, WrongTextsAreRefusedWithTheField) {
  const struct {
    Constraint constraint;
    std::string field;
  } cases[] = {
      {{Kind::kRegex, "(a", {}}, "constraint.regex: "},
      {{Kind::kRegex, "a(?=b)", {}}, "constraint.regex: "},
      {{Kind::kRegex, "(a)\\1", {}}, "constraint.regex: "},
      {{Kind::kRegex, "\\p{Lu}", {}}, "constraint.regex: "},
      {{Kind::kRegex, "a$b^", {}}, "constraint.regex: "},
      {{Kind::kRegex, "$", {}}, "constraint.regex: "},
      {{Kind::kGrammar, "root ::= missing", {}}, "constraint.grammar: "},
      {{Kind::kGrammar, "start ::= \"a\"", {}}, "constraint.grammar: "},
      {{Kind::kGrammar, "root ::= \"a", {}}, "constraint.grammar: "},
      {{Kind::kJsonSchema, R"({"type":"strin"})", {}}, "constraint.json_schema: "},
      {{Kind::kJsonSchema, R"({"type":"integer","minimum":3,"maximum":2})", {}},
       "constraint.json_schema: "},
      {{Kind::kJsonSchema, R"({"$ref":"http://example.com/x"})", {}}, "constraint.json_schema: "},
      {{Kind::kJsonSchema, R"({"$ref":"#/$defs/none"})", {}}, "constraint.json_schema: "},
      {{Kind::kJsonSchema, R"({"type":"number","multipleOf":0.5})", {}},
       "constraint.json_schema: "},
      {{Kind::kJsonSchema, R"({"oneOf":[{"type":"string"},{"type":"string","maxLength":3}]})", {}},
       "constraint.json_schema: "},
      {{Kind::kJsonSchema, R"({"type":"string","pattern":"a+","maxLength":3})", {}},
       "constraint.json_schema: "},
      {{Kind::kJsonSchema, "false", {}}, "constraint.json_schema: "},
  };
  for (const auto& c : cases) {
    const auto compiled = Bytes().compiler.Compile(c.constraint);
    EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument) << c.constraint.text;
    EXPECT_EQ(compiled.status().message().substr(0, c.field.size()), c.field) << compiled.status();
  }
}

TEST(VocabularyBytes, ComeBackFromTheirBytes) {
  const VocabularyBytes& vocabulary = TinyLlama().vocabulary;
  const std::string bytes = vocabulary.Serialize();
  const auto again = VocabularyBytes::Parse(bytes);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->vocab_size, vocabulary.vocab_size);
  EXPECT_EQ(again->tokens, vocabulary.tokens);
  EXPECT_EQ(again->end_tokens, vocabulary.end_tokens);
  EXPECT_FALSE(VocabularyBytes::Parse(bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(VocabularyBytes::Parse("abc").ok());
}

TEST(ConstraintCompiler, AGrammarIsMeasuredWhileItIsFollowed) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i * i % 23);
  const Constraint constraint = {.kind = Kind::kRegex, .text = text, .options = {}};
  const uint64_t before = Compile(Bytes(), constraint)->MemoryBytes();
  EXPECT_GT(before, 0u);
  const ConstraintCompiler bounded(Bytes().vocabulary, {.one = before + 1});
  const auto compiled = bounded.Compile(constraint);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const CompiledGrammar& grammar = **compiled;
  EXPECT_EQ(grammar.MemoryBytes(), before);
  EXPECT_FALSE(grammar.TooLarge());
  const auto matcher = grammar.NewMatcher(/*end_tokens=*/true);
  std::string mask;
  for (const char letter : text) {
    ASSERT_TRUE(matcher->AcceptToken(letter));
    matcher->FillMask(&mask);
  }
  EXPECT_GT(grammar.MemoryBytes(), before + 1) << "masks are made when they are needed";
  EXPECT_TRUE(grammar.TooLarge());
}

}  // namespace
}  // namespace bitshard
