// GrammarCompiler under callers who leave, come in crowds, or send what cannot be compiled; and at
// its end.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "coordinator/grammar/constraint_compiler.h"
#include "coordinator/stack_thread.h"
#include "proto/status_details.h"
#include "tests/coordinator/grammar/compiler_fixture.h"
#include "tests/support/await.h"

namespace bitshard {
namespace {

// Holds the one thread after its first constraint, until released.
struct Hold {
  void Of(GrammarCompiler::Options* options) {
    options->threads = 1;
    options->on_compiled = [this](Constraint::Kind, absl::Duration, const absl::Status&) {
      if (held.HasBeenNotified()) return;
      held.Notify();
      release.WaitForNotification();
    };
  }
  absl::Notification held, release;
};

TEST(GrammarLoad, ARefusalIsRememberedAndABusyMachineIsNot) {
  GrammarCompiler::Options options = CompilerOptions();
  std::atomic<int> tried{0};
  options.on_compiled = [&](Constraint::Kind, absl::Duration, const absl::Status&) { ++tried; };
  options.remembered_refusals = 2;
  {
    GrammarCompiler compiler(Vocabulary(), options);
    const auto compile = [&](const std::string& text) {
      Answer answer;
      compiler.Compile(Regex(text), "", answer.Taker());
      return answer.Await().status();
    };
    const absl::Status first = compile("(a");
    EXPECT_EQ(first.code(), absl::StatusCode::kInvalidArgument) << first;
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(compile("(a"), first);
    EXPECT_EQ(tried, 1);
    // Of three the one that was asked for longest ago is forgotten.
    EXPECT_FALSE(compile("(b").ok());
    EXPECT_FALSE(compile("(a").ok());
    EXPECT_FALSE(compile("(c").ok());
    EXPECT_EQ(tried, 3);
    EXPECT_FALSE(compile("(a").ok());
    EXPECT_FALSE(compile("(c").ok());
    EXPECT_EQ(tried, 3);
    EXPECT_FALSE(compile("(b").ok());
    EXPECT_EQ(tried, 4);
  }
  tried = 0;
  options.guard_command = GuardCommand(/*hang=*/true);
  options.limits.wall_time = absl::Milliseconds(100);
  GrammarCompiler busy(Vocabulary(), options);
  for (int i = 0; i < 2; ++i) {
    Answer answer;
    busy.Compile(Regex("a"), "", answer.Taker());
    EXPECT_EQ(answer.Await().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(RetryDelay(answer.result.status()).has_value());
  }
  EXPECT_EQ(tried, 2);
}

TEST(GrammarLoad, WhatNobodyWaitsForAnyMoreIsNotCompiled) {
  GrammarCompiler::Options options = CompilerOptions();
  Hold hold;
  hold.Of(&options);
  Answer a, b, c, c2;
  GrammarCompiler compiler(Vocabulary(), options);
  compiler.Compile(Regex("a"), "x", a.Taker());
  AwaitNotified(hold.held, "the first constraint");
  const auto b_ticket = compiler.Compile(Regex("b"), "x", b.Taker());
  const auto c_ticket = compiler.Compile(Regex("c"), "x", c.Taker());
  compiler.Compile(Regex("c"), "y", c2.Taker());
  compiler.Cancel(b_ticket);
  ASSERT_TRUE(b.done.HasBeenNotified());
  EXPECT_EQ(b.result.status().code(), absl::StatusCode::kCancelled);
  compiler.Cancel(b_ticket);  // nothing is left to cancel
  compiler.Cancel(c_ticket);
  EXPECT_EQ(c.Await().status().code(), absl::StatusCode::kCancelled);
  hold.release.Notify();
  EXPECT_TRUE(a.Await().ok());
  EXPECT_TRUE(c2.Await().ok()) << "somebody else still wanted it";
  EXPECT_EQ(compiler.compiled(), 2u);
  compiler.Cancel(c_ticket);
}

TEST(GrammarLoad, ATryIsKilledWithItsLastCaller) {
  GrammarCompiler::Options options = CompilerOptions(/*hang=*/true);
  options.threads = 1;
  GrammarCompiler compiler(Vocabulary(), options);
  // Every try hangs; the one thread gets on only when it is killed.
  for (int i = 0; i < 5; ++i) {
    Answer first, second;
    const Constraint constraint = Regex(absl::StrCat("a", i));
    const auto first_ticket = compiler.Compile(constraint, "x", first.Taker());
    const auto second_ticket = compiler.Compile(constraint, "y", second.Taker());
    AwaitTrue("an empty queue", [&] { return compiler.waiting() == 0; });
    compiler.Cancel(first_ticket);
    EXPECT_FALSE(second.done.HasBeenNotified());
    compiler.Cancel(second_ticket);
    EXPECT_EQ(first.Await().status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(second.Await().status().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(compiler.compiled(), 0u);
}

TEST(GrammarLoad, AConstraintThatWasDroppedIsTriedAnewForTheNext) {
  GrammarCompiler::Options options = CompilerOptions(/*hang=*/true);
  options.threads = 1;
  options.limits.wall_time = absl::Seconds(2);
  Answer gone, next;
  GrammarCompiler compiler(Vocabulary(), options);
  const auto ticket = compiler.Compile(Regex("a"), "x", gone.Taker());
  AwaitTrue("an empty queue", [&] { return compiler.waiting() == 0; });
  compiler.Cancel(ticket);
  compiler.Compile(Regex("a"), "x", next.Taker());
  EXPECT_EQ(next.Await().status().code(), absl::StatusCode::kUnavailable)
      << "of its own try: " << next.result.status();
}

TEST(GrammarLoad, TenantsTakeTurns) {
  GrammarCompiler::Options options = CompilerOptions();
  Hold hold;
  hold.Of(&options);
  std::mutex mu;
  std::vector<std::string> order;
  std::atomic<int> left{12};
  absl::Notification all;
  GrammarCompiler compiler(Vocabulary(), options);
  const auto compile = [&](const std::string& text, const std::string& tenant) {
    compiler.Compile(Regex(text), tenant, [&, tenant](const GrammarCompiler::Result& result) {
      EXPECT_TRUE(result.ok()) << result.status();
      {
        std::lock_guard<std::mutex> lock(mu);
        order.push_back(tenant);
      }
      if (--left == 0) all.Notify();
    });
  };
  compile("first", "many");
  AwaitNotified(hold.held, "the first constraint");
  for (int i = 0; i < 10; ++i) compile(absl::StrCat("m", i), "many");
  compile("single", "one");
  hold.release.Notify();
  AwaitNotified(all, "the answers to all");
  const auto single = std::find(order.begin(), order.end(), "one") - order.begin();
  EXPECT_LE(single, 2) << "after the one at hand and one more";
}

TEST(GrammarLoad, OneTenantNeverHasAllThreads) {
  GrammarCompiler::Options options = CompilerOptions();
  options.threads = 2;
  options.tenant_threads = 1;
  absl::Notification release;
  std::atomic<int> regexes{0};
  options.on_compiled = [&](Constraint::Kind kind, absl::Duration, const absl::Status&) {
    if (kind != Constraint::Kind::kRegex) return;
    ++regexes;
    release.WaitForNotification();
  };
  Answer a, b, other;
  GrammarCompiler compiler(Vocabulary(), options);
  compiler.Compile(Regex("a"), "x", a.Taker());
  compiler.Compile(Regex("b"), "x", b.Taker());
  AwaitTrue("a regex that is compiled", [&] { return regexes > 0; });
  compiler.Compile({Constraint::Kind::kChoice, "", {"yes", "no"}}, "y", other.Taker());
  EXPECT_TRUE(other.Await().ok());
  EXPECT_EQ(regexes, 1);
  release.Notify();
  EXPECT_TRUE(a.Await().ok());
  EXPECT_TRUE(b.Await().ok());
}

TEST(GrammarLoad, ATenantsShareOfTheQueueIsItsOwn) {
  GrammarCompiler::Options options = CompilerOptions();
  options.max_waiting = 2;
  options.max_waiting_in_all = 3;
  options.max_callers = 3;
  Hold hold;
  hold.Of(&options);
  std::vector<std::unique_ptr<Answer>> answers;
  GrammarCompiler compiler(Vocabulary(), options);
  const auto compile = [&](const std::string& text, const std::string& tenant) -> Answer& {
    answers.push_back(std::make_unique<Answer>());
    compiler.Compile(Regex(text), tenant, answers.back()->Taker());
    return *answers.back();
  };
  const auto refused = [](Answer& answer) {
    return answer.done.HasBeenNotified() && absl::IsResourceExhausted(answer.result.status()) &&
           RetryDelay(answer.result.status()).has_value();
  };
  compile("a", "x");
  AwaitNotified(hold.held, "the first constraint");
  compile("b", "x");
  compile("c", "x");
  EXPECT_TRUE(refused(compile("d", "x")));
  EXPECT_TRUE(refused(compile("c", "x"))) << "its callers are too many";
  EXPECT_FALSE(compile("c", "y").done.HasBeenNotified()) << "another's constraint may be joined";
  EXPECT_TRUE(refused(compile("e", "z"))) << "all places are taken";
  hold.release.Notify();
  for (const auto& answer : answers) answer->Await();
  EXPECT_EQ(compiler.compiled(), 3u);
}

TEST(GrammarLoad, GrammarsInUseHaveABoundAndTheNextMustWait) {
  uint64_t one = 0;
  {
    const auto grammar = ConstraintCompiler(Vocabulary()).Compile(Regex("[a-f]{8}"));
    ASSERT_TRUE(grammar.ok());
    one = (*grammar)->MemoryBytes();
  }
  GrammarCompiler::Options options = CompilerOptions();
  options.threads = 1;
  options.shelf.kept_bytes = 0;
  options.shelf.bytes = one + one / 2;
  GrammarCompiler compiler(Vocabulary(), options);
  auto in_use = std::make_unique<Answer>();
  compiler.Compile(Regex("[a-f]{8}"), "", in_use->Taker());
  ASSERT_TRUE(in_use->Await().ok()) << in_use->result.status();
  for (int i = 0; i < 2; ++i) {
    Answer second;
    compiler.Compile(Regex("[b-g]{8}"), "", second.Taker());
    EXPECT_EQ(second.Await().status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReason(second.result.status()), "CONSTRAINT_MEMORY");
    EXPECT_TRUE(RetryDelay(second.result.status()).has_value());
    Answer same;
    compiler.Compile(Regex("[a-f]{8}"), "", same.Taker());
    EXPECT_TRUE(same.Await().ok()) << "it is there";
  }
  in_use.reset();
  Answer third;
  compiler.Compile(Regex("[b-g]{8}"), "", third.Taker());
  EXPECT_TRUE(third.Await().ok()) << third.result.status();
}

TEST(GrammarLoad, TheEndDoesNotWaitForWhatIsTried) {
  GrammarCompiler::Options options = CompilerOptions(/*hang=*/true);
  Answer a, b, c;
  auto compiler = std::make_unique<GrammarCompiler>(Vocabulary(), options);
  compiler->Compile(Regex("a"), "x", a.Taker());
  compiler->Compile(Regex("b"), "y", b.Taker());
  AwaitTrue("an empty queue", [&] { return compiler->waiting() == 0; });
  compiler.reset();  // the tries go on for an hour
  for (Answer* answer : {&a, &b}) {
    EXPECT_EQ(answer->Await().status().code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(RetryDelay(answer->result.status()).has_value());
  }
}

TEST(GrammarLoad, CompilingThreadsHaveTheirOwnSizeOfStack) {
  pthread_attr_t old, small;
  ASSERT_EQ(pthread_getattr_default_np(&old), 0);
  ASSERT_EQ(pthread_attr_init(&small), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&small, 1 << 20), 0);
  ASSERT_EQ(pthread_setattr_default_np(&small), 0);
  std::atomic<size_t> bytes{0};
  {
    GrammarCompiler::Options options = CompilerOptions();
    options.on_compiled = [&](Constraint::Kind, absl::Duration, const absl::Status&) {
      pthread_attr_t own;
      size_t size = 0;
      pthread_getattr_np(pthread_self(), &own);
      pthread_attr_getstacksize(&own, &size);
      pthread_attr_destroy(&own);
      bytes = size;
    };
    Answer a;
    GrammarCompiler compiler(Vocabulary(), options);
    compiler.Compile(Regex("a"), "", a.Taker());
    EXPECT_TRUE(a.Await().ok());
  }
  EXPECT_GE(bytes, kThreadStackBytes);
  ASSERT_EQ(pthread_setattr_default_np(&old), 0);
}

}  // namespace
}  // namespace bitshard
