#include "coordinator/grammar/compile_guard.h"

#include <csignal>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "coordinator/grammar/framed_pipe.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

// Reading the vocabulary takes a moment, on a busy machine a longer one.
constexpr absl::Duration kStartTime = absl::Seconds(60);

// Kind, then the field, then text or options, each after its length.
std::string Message(const Constraint& constraint) {
  std::string out(1, static_cast<char>(constraint.kind));
  const auto append = [&out](const std::string& text) {
    const uint32_t size = static_cast<uint32_t>(text.size());
    out.append(reinterpret_cast<const char*>(&size), sizeof(size));
    out += text;
  };
  append(constraint.text);
  for (const std::string& option : constraint.options) append(option);
  return out;
}

}  // namespace

CompileGuard::CompileGuard(std::vector<std::string> command, const std::string* vocabulary,
                           const CompileLimits& limits)
    : command_(std::move(command)), vocabulary_(vocabulary), limits_(limits) {}

CompileGuard::~CompileGuard() {
  if (pid_ != 0) Reap();
}

absl::Status CompileGuard::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return absl::UnavailableError("no socket for a process that compiles constraints");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  std::vector<char*> arguments;
  for (const std::string& argument : command_)
    arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return absl::UnavailableError(
        absl::StrCat("cannot start ", command_[0], " to compile a constraint"));
  }
  pid_ = pid;
  fd_ = ends[0];
  absl::Status status = WriteFrame(
      fd_, absl::StrCat(absl::ToInt64Seconds(limits_.cpu_time), " ", limits_.memory_bytes));
  if (status.ok()) status = WriteFrame(fd_, *vocabulary_);
  if (status.ok()) status = ReadFrame(fd_, kStartTime).status();
  if (status.ok()) return status;
  Reap();
  return absl::UnavailableError(
      absl::StrCat("the process that compiles constraints does not start: ", status.message()));
}

int CompileGuard::Reap() {
  kill(pid_, SIGKILL);
  close(fd_);
  int ended = 0;
  while (waitpid(pid_, &ended, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  fd_ = -1;
  return ended;
}

absl::Status CompileGuard::Try(const Constraint& constraint, bool again) {
  if (pid_ == 0) RETURN_IF_ERROR(Start());
  absl::Status status = WriteFrame(fd_, Message(constraint));
  if (!status.ok()) {  // it was killed while nobody asked
    Reap();
    RETURN_IF_ERROR(Start());
    status = WriteFrame(fd_, Message(constraint));
  }
  const absl::StatusOr<std::string> answer =
      status.ok() ? ReadFrame(fd_, limits_.wall_time) : absl::StatusOr<std::string>(status);
  if (answer.ok()) {
    return answer->empty() ? absl::OkStatus() : BadFieldError(constraint.Field(), *answer);
  }
  // Killed by its bound on processor time, or not even at it by now; by its own stack; or else.
  const bool late = absl::IsDeadlineExceeded(answer.status());
  const int ended = Reap();
  const int signal = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  // None of its bounds kills like that: somebody else did, maybe for somebody else's doing.
  if (signal == SIGKILL && !late && !again) return Try(constraint, /*again=*/true);
  LogWarning("grammar: event=compile_refused field={} late={} signal={}",
             std::string(constraint.Field()), late, signal);
  if (late || signal == SIGXCPU) {
    return BadFieldError(constraint.Field(),
                         absl::StrCat("does not compile within ",
                                      absl::FormatDuration(limits_.cpu_time), "; make it simpler"));
  }
  return BadFieldError(
      constraint.Field(),
      "does not compile within the memory and stack that it may have; make it simpler");
}

}  // namespace bitshard
