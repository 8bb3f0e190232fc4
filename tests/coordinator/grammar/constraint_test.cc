#include "coordinator/grammar/constraint.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/grammar/schema_check.h"

namespace bitshard {
namespace {

using Kind = Constraint::Kind;

TEST(Constraint, KeysTellConstraintsApart) {
  const std::vector<Constraint> all = {
      {Kind::kJsonSchema, "{}", {}},   {Kind::kRegex, "{}", {}},
      {Kind::kGrammar, "{}", {}},      {Kind::kChoice, "", {"a"}},
      {Kind::kChoice, "", {"a", "b"}}, {Kind::kChoice, "", {"ab"}},
      {Kind::kChoice, "", {"a1:b"}},   {Kind::kChoice, "", {"a", "b", ""}}};
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < all.size(); ++j)
      EXPECT_EQ(all[i].Key() == all[j].Key(), i == j) << i << j;
  }
}

TEST(Constraint, BoundsAreKeptAndTheFieldIsNamed) {
  const std::string large(kMaxConstraintBytes + 1, 'a');
  const std::string deep = std::string(100, '(') + "a" + std::string(100, ')');
  const struct {
    Constraint constraint;
    std::string field;
  } cases[] = {
      {{Kind::kJsonSchema, "", {}}, "constraint.json_schema"},
      {{Kind::kJsonSchema, "\"" + large + "\"", {}}, "constraint.json_schema"},
      {{Kind::kJsonSchema, std::string(5000, '['), {}}, "constraint.json_schema"},
      {{Kind::kJsonSchema, "{\"type\":", {}}, "constraint.json_schema"},
      {{Kind::kRegex, large, {}}, "constraint.regex"},
      {{Kind::kRegex, deep, {}}, "constraint.regex"},
      {{Kind::kRegex, std::string("a\0b", 3), {}}, "constraint.regex"},
      {{Kind::kGrammar, "root ::= " + deep, {}}, "constraint.grammar"},
      {{Kind::kChoice, "", {}}, "constraint.choice.options"},
      {{Kind::kChoice, "", {"a", ""}}, "constraint.choice.options[1]"},
      {{Kind::kChoice, "", std::vector<std::string>(kMaxConstraintOptions + 1, "a")},
       "constraint.choice.options"},
      {{Kind::kChoice, "", {large}}, "constraint.choice.options"},
  };
  for (const auto& c : cases) {
    const absl::Status status = CheckConstraint(c.constraint);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_EQ(status.message().substr(0, c.field.size() + 1), c.field + ":") << status;
  }
}

TEST(Constraint, ParenthesesInQuotesAndClassesDoNotNest) {
  std::string grammar = "root ::= \"" + std::string(100, '(') + "\" # " + std::string(100, '(');
  EXPECT_TRUE(CheckConstraint({Kind::kGrammar, grammar, {}}).ok());
  EXPECT_TRUE(CheckConstraint({Kind::kRegex, "[" + std::string(100, '(') + "]", {}}).ok());
  EXPECT_TRUE(
      CheckConstraint({Kind::kRegex, std::string(40, '(') + std::string(40, ')'), {}}).ok());
}

TEST(SchemaCheck, WhatCanBeKeptPasses) {
  for (const std::string schema :
       {R"({})", R"(true)", R"({"type":"object","properties":{"not":{"type":"string"}}})",
        R"({"type":"object","properties":{"a":{"enum":["if",1]}},"required":["a"]})",
        R"({"$defs":{"n":{"type":"integer"}},"$ref":"#/$defs/n"})",
        R"({"anyOf":[{"type":"null"},{"type":"string","maxLength":3}],"default":null,"title":"x"})",
        R"({"type":["string","null"],"minLength":1})", R"({"allOf":[{"type":"string"}]})",
        R"({"type":"array","items":{"type":"number","minimum":0},"uniqueItems":false})",
        R"({"const":{"not":1}})", R"({"type":"integer","enum":[1,2]})"}) {
    const auto wrong = WrongInSchema(schema);
    EXPECT_FALSE(wrong.has_value()) << schema << ": " << *wrong;
  }
}

TEST(SchemaCheck, WhatWouldBeDroppedSilentlyIsNamed) {
  const struct {
    std::string schema, word;
  } cases[] = {
      {R"({"not":{"type":"string"}})", "\"not\""},
      {R"({"type":"array","items":{},"uniqueItems":true})", "\"uniqueItems\""},
      {R"({"type":"array","contains":{}})", "\"contains\""},
      {R"({"type":"object","properties":{"a":{"if":{}}}})", "#/properties/a"},
      {R"({"$defs":{"x":{"dependentRequired":{}}},"type":"string"})", "#/$defs/x"},
      {R"({"anyOf":[{"type":"object"}],"properties":{"a":{}}})", "\"properties\" beside \"anyOf\""},
      {R"({"$ref":"#","type":"object"})", "beside \"$ref\""},
      {R"({"allOf":[{"type":"string"},{"minLength":2,"type":"string"}]})", "\"allOf\""},
      {R"({"minLength":3})", "needs a \"type\""},
      {R"({"type":"string","enum":["a",1]})", "\"enum\""},
      {R"({"type":"string","const":1})", "\"const\""},
      {R"({"type":"object","properties":{"a":{}},"required":["b"]})", "\"b\""},
      {R"({"type":"string","pattern":"a","format":"date"})", "\"pattern\" beside \"format\""},
      {R"({"type":"object","properties":{"a":3}})", "#/properties/a"},
      {R"({"type":"object","type":"string"})", "twice"},
  };
  for (const auto& c : cases) {
    const auto wrong = WrongInSchema(c.schema);
    ASSERT_TRUE(wrong.has_value()) << c.schema;
    EXPECT_NE(wrong->find(c.word), std::string::npos) << c.schema << ": " << *wrong;
  }
}

}  // namespace
}  // namespace bitshard
