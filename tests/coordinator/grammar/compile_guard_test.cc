#include "coordinator/grammar/compile_guard.h"

#include <csignal>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "coordinator/grammar/framed_pipe.h"
#include "proto/status_details.h"
#include "tests/coordinator/grammar/compiler_fixture.h"
#include "tests/support/await.h"

namespace bitshard {
namespace {

TEST(FramedPipe, AWriteThatNobodyReadsEnds) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const std::string much(64 << 20, 'x');
  EXPECT_EQ(WriteFrame(ends[0], much, absl::Milliseconds(50)).code(),
            absl::StatusCode::kDeadlineExceeded);
  close(ends[1]);
  EXPECT_EQ(WriteFrame(ends[0], "x", absl::Seconds(60)).code(), absl::StatusCode::kUnavailable);
  close(ends[0]);
}

TEST(FramedPipe, FramesComeWholeThroughASmallBuffer) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const std::string much(8 << 20, 'x');
  std::thread writer([&] {
    for (const std::string& frame : {much, std::string(), std::string("end")})
      EXPECT_TRUE(WriteFrame(ends[0], frame, absl::InfiniteDuration()).ok());
  });
  for (const std::string& frame : {much, std::string(), std::string("end")}) {
    const absl::StatusOr<std::string> read = ReadFrame(ends[1], absl::InfiniteDuration());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == frame) << read->size();
  }
  writer.join();
  close(ends[0]);
  close(ends[1]);
}

TEST(CompileGuard, TellsWhatIsWrongAndGoesOn) {
  const std::string vocabulary = Vocabulary().Serialize();
  CompileGuard guard(GuardCommand(), &vocabulary, CompilerOptions().limits);
  EXPECT_EQ(guard.pid(), 0) << "started before anybody asked";
  EXPECT_TRUE(guard.Try(Regex("a+")).ok());
  const pid_t pid = guard.pid();
  const absl::Status wrong = guard.Try(Regex("(a"));
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.message().substr(0, 18), "constraint.regex: ") << wrong;
  EXPECT_TRUE(guard.Try({Constraint::Kind::kChoice, "", {"a", "b"}}).ok());
  EXPECT_TRUE(guard.Try({Constraint::Kind::kJsonSchema, "{\"type\":\"object\"}", {}}).ok());
  EXPECT_EQ(guard.pid(), pid);
}

TEST(CompileGuard, ADeadProcessIsReplaced) {
  const std::string vocabulary = Vocabulary().Serialize();
  CompileGuard guard(GuardCommand(), &vocabulary, CompilerOptions().limits);
  ASSERT_TRUE(guard.Try(Regex("a")).ok());
  const pid_t pid = guard.pid();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_TRUE(guard.Try(Regex("b")).ok());
  EXPECT_NE(guard.pid(), pid);
}

TEST(CompileGuard, AMissingProgramIsUnavailable) {
  const std::string vocabulary = Vocabulary().Serialize();
  CompileGuard guard({"/nowhere/guard"}, &vocabulary, CompilerOptions().limits);
  const absl::Status status = guard.Try(Regex("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(RetryDelay(status).has_value());
}

// It sleeps for ever, and uses up nothing: what it cannot tell is nothing against the constraint.
TEST(CompileGuard, ATryThatGotNoProcessorTimeMayBeTriedAgain) {
  const std::string vocabulary = Vocabulary().Serialize();
  CompileLimits limits = CompilerOptions().limits;
  limits.wall_time = absl::Milliseconds(200);
  CompileGuard guard(GuardCommand(/*hang=*/true), &vocabulary, limits);
  const absl::Status status = guard.Try(Regex("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(RetryDelay(status).has_value()) << status;
  EXPECT_EQ(ErrorReason(status), "CONSTRAINT_COMPILER_BUSY");
  EXPECT_EQ(guard.pid(), 0);
}

TEST(CompileGuard, AnInterruptEndsTheTryAtHandAndThoseAfterItUntilItIsRearmed) {
  const std::string vocabulary = Vocabulary().Serialize();
  CompileGuard guard(GuardCommand(/*hang=*/true), &vocabulary,
                     CompilerOptions(/*hang=*/true).limits);
  absl::Status status;
  std::thread trying([&] { status = guard.Try(Regex("a")); });
  AwaitTrue("a guard process", [&] { return guard.pid() != 0; });
  guard.Interrupt();
  trying.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(guard.Try(Regex("b")).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(guard.pid(), 0);
  guard.Rearm();
  std::thread again([&] { status = guard.Try(Regex("a")); });
  AwaitTrue("a guard process", [&] { return guard.pid() != 0; });
  guard.Interrupt();
  again.join();
}

}  // namespace
}  // namespace bitshard
