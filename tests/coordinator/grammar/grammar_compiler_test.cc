#include "coordinator/grammar/grammar_compiler.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "proto/status_details.h"
#include "tests/coordinator/grammar/compiler_fixture.h"
#include "tests/support/await.h"

namespace bitshard {
namespace {

using Kind = Constraint::Kind;

// Everything here is small as text. Each is compiled, or refused by a bound; nothing else happens,
// and the next one is served.
TEST(GrammarCompiler, ExplosiveConstraintsAreCompiledOrRefused) {
  std::string many_rules = "root ::= r0\n", nested = "a", doubling = "root ::= d0\n";
  for (int i = 0; i < 2000; ++i)
    absl::StrAppend(&many_rules, "r", i, " ::= \"x\" r", (i * 7 + 1) % 2000, " | r",
                    (i * 13 + 5) % 2000, " \"y\" | \"z\"\n");
  for (int i = 0; i < 30; ++i) nested = absl::StrCat("(", nested, "){9,10}");
  for (int i = 0; i < 40; ++i)
    absl::StrAppend(&doubling, "d", i, " ::= d", i + 1, " d", i + 1, " | d", i + 1, "\n");
  absl::StrAppend(&doubling, "d40 ::= \"a\" | \"b\"\n");
  std::string refs = "{\"$defs\":{", schema_enum = "{\"enum\":[";
  for (int i = 0; i < 25; ++i)
    absl::StrAppend(&refs, i == 0 ? "" : ",", "\"d", i,
                    "\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/d", i + 1,
                    "\"},\"b\":{\"$ref\":\"#/$defs/d", i + 1, "\"}}}");
  absl::StrAppend(&refs, ",\"d25\":{\"type\":\"integer\"}},\"$ref\":\"#/$defs/d0\"}");
  for (int i = 0; i < 6000; ++i) absl::StrAppend(&schema_enum, i == 0 ? "" : ",", i * 7919);
  schema_enum += "]}";
  std::string alternatives = "(";
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&alternatives, i == 0 ? "" : "|", "(a|b)*", i);
  alternatives += ")*";

  GrammarCompiler compiler(Vocabulary(), CompilerOptions());
  const Constraint constraints[] = {
      Regex("a{1000000000}"),
      Regex("(a{1,1000}){1,1000}"),
      Regex(nested),
      Regex("(x+x+)+y"),
      Regex(alternatives),
      {Kind::kGrammar, many_rules, {}},
      {Kind::kGrammar, doubling, {}},
      {Kind::kGrammar, "root ::= root root | \"a\"", {}},
      {Kind::kGrammar, "root ::= root", {}},
      {Kind::kJsonSchema, refs, {}},
      {Kind::kJsonSchema, schema_enum, {}},
      {Kind::kJsonSchema, "{\"$ref\":\"#\"}", {}},
      {Kind::kJsonSchema, "{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"string\"}]}", {}},
      {Kind::kJsonSchema, "{\"type\":\"string\",\"minLength\":2000000000}", {}},
      {Kind::kJsonSchema,
       "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":100000},\"minItems\":"
       "1000000}",
       {}},
  };
  for (const Constraint& constraint : constraints) {
    Answer answer;
    compiler.Compile(constraint, "", answer.Taker());
    const absl::Status status = answer.Await().status();
    std::printf("%s %.60s: %.*s\n", std::string(constraint.Field()).c_str(),
                constraint.text.c_str(),
                static_cast<int>(std::min<size_t>(200, status.ToString().size())),
                status.ToString().c_str());
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    Answer next;
    compiler.Compile(Regex(absl::StrCat("n", compiler.compiled())), "", next.Taker());
    EXPECT_TRUE(next.Await().ok()) << next.result.status();
  }
}

TEST(GrammarCompiler, KeepsWhatItCompiledAndForgetsTheOldest) {
  GrammarCompiler::Options options = CompilerOptions();
  options.shelf.kept_grammars = 3;
  options.threads = 1;
  GrammarCompiler compiler(Vocabulary(), options);
  std::shared_ptr<const CompiledGrammar> first;
  for (const char* text : {"a", "b", "c", "a", "d", "e", "a"}) {
    Answer answer;
    compiler.Compile(Regex(text), "", answer.Taker());
    ASSERT_TRUE(answer.Await().ok()) << answer.result.status();
    if (first == nullptr) first = *answer.result;
    if (std::string(text) == "a") {
      EXPECT_EQ(*answer.result, first) << "compiled again";
    }
  }
  EXPECT_EQ(compiler.compiled(), 5u);
  EXPECT_EQ(compiler.kept(), 3u);
  Answer answer;
  compiler.Compile(Regex("b"), "", answer.Taker());
  ASSERT_TRUE(answer.Await().ok());
  EXPECT_EQ(compiler.compiled(), 6u) << "b is the one used longest ago";
}

TEST(GrammarCompiler, KeepsWithinItsBytes) {
  GrammarCompiler::Options options = CompilerOptions();
  options.shelf.kept_bytes = 1;
  options.threads = 1;
  GrammarCompiler compiler(Vocabulary(), options);
  for (const char* text : {"a", "b", "c"}) {
    Answer answer;
    compiler.Compile(Regex(text), "", answer.Taker());
    ASSERT_TRUE(answer.Await().ok());
  }
  EXPECT_EQ(compiler.kept(), 1u);
}

TEST(GrammarCompiler, CompilesOnceForAllWhoAskAndBoundsItsQueue) {
  GrammarCompiler::Options options = CompilerOptions();
  options.threads = 1;
  options.max_waiting = 2;
  absl::Notification hold, held;
  bool first = true;
  options.on_compiled = [&](Constraint::Kind, absl::Duration, const absl::Status&) {
    if (!std::exchange(first, false)) return;
    held.Notify();
    hold.WaitForNotification();
  };
  Answer a, b, b2, c, d, refused;
  GrammarCompiler compiler(Vocabulary(), options);
  compiler.Compile(Regex("a"), "", a.Taker());
  AwaitNotified(held, "the first constraint");
  compiler.Compile(Regex("b"), "", b.Taker());
  compiler.Compile(Regex("c"), "", c.Taker());
  compiler.Compile(Regex("b"), "", b2.Taker());
  compiler.Compile(Regex("d"), "", d.Taker());
  ASSERT_TRUE(d.done.HasBeenNotified()) << "a full queue answers at once";
  EXPECT_EQ(d.result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryDelay(d.result.status()).has_value());
  compiler.Compile(Regex(""), "", refused.Taker());
  ASSERT_TRUE(refused.done.HasBeenNotified());
  EXPECT_EQ(refused.result.status().code(), absl::StatusCode::kInvalidArgument);
  hold.Notify();
  EXPECT_TRUE(a.Await().ok());
  EXPECT_TRUE(c.Await().ok());
  ASSERT_TRUE(b.Await().ok());
  ASSERT_TRUE(b2.Await().ok());
  EXPECT_EQ(*b.result, *b2.result);
  EXPECT_EQ(compiler.compiled(), 3u);
}

TEST(GrammarCompiler, BoundsWhoWaitsForTheSameConstraint) {
  GrammarCompiler::Options options = CompilerOptions();
  options.threads = 1;
  options.max_callers = 2;
  absl::Notification hold, held;
  options.on_compiled = [&](Constraint::Kind, absl::Duration, const absl::Status&) {
    if (!held.HasBeenNotified()) held.Notify();
    hold.WaitForNotification();
  };
  Answer a, b, c, d;
  GrammarCompiler compiler(Vocabulary(), options);
  compiler.Compile(Regex("a"), "", a.Taker());
  AwaitNotified(held, "the first constraint");
  compiler.Compile(Regex("a"), "", b.Taker());
  compiler.Compile(Regex("a"), "", c.Taker());
  ASSERT_TRUE(c.done.HasBeenNotified());
  EXPECT_EQ(c.result.status().code(), absl::StatusCode::kResourceExhausted);
  hold.Notify();
  EXPECT_TRUE(a.Await().ok());
  EXPECT_TRUE(b.Await().ok());
  compiler.Compile(Regex("d"), "", d.Taker());
  EXPECT_TRUE(d.Await().ok());
}

TEST(GrammarCompiler, StopAnswersWhoWaitsForTheConstraintAtHand) {
  GrammarCompiler::Options options = CompilerOptions();
  options.threads = 1;
  absl::Notification hold, held;
  options.on_compiled = [&](Constraint::Kind, absl::Duration, const absl::Status&) {
    held.Notify();
    hold.WaitForNotification();
  };
  Answer a, b;
  GrammarCompiler compiler(Vocabulary(), options);
  compiler.Compile(Regex("a"), "", a.Taker());
  AwaitNotified(held, "the first constraint");
  compiler.Stop();
  ASSERT_TRUE(a.done.HasBeenNotified());
  EXPECT_EQ(a.result.status().code(), absl::StatusCode::kUnavailable);
  compiler.Compile(Regex("b"), "", b.Taker());
  ASSERT_TRUE(b.done.HasBeenNotified());
  EXPECT_EQ(b.result.status().code(), absl::StatusCode::kUnavailable);
  hold.Notify();
}

TEST(GrammarCompiler, WhatWaitsAtItsEndIsTold) {
  GrammarCompiler::Options options = CompilerOptions();
  options.threads = 1;
  absl::Notification hold, held;
  options.on_compiled = [&](Constraint::Kind, absl::Duration, const absl::Status&) {
    if (!held.HasBeenNotified()) held.Notify();
    hold.WaitForNotification();
  };
  Answer a, b;
  auto compiler = std::make_unique<GrammarCompiler>(Vocabulary(), options);
  compiler->Compile(Regex("a"), "", a.Taker());
  AwaitNotified(held, "the first constraint");
  compiler->Compile(Regex("b"), "", [&](const GrammarCompiler::Result& r) {
    b.Taker()(r);
    hold.Notify();
  });
  compiler.reset();
  EXPECT_EQ(a.Await().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(b.Await().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bitshard
