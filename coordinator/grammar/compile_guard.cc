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

absl::Status Busy(const std::string& why) {
  return WithRetryInfo(
      WithErrorInfo(absl::UnavailableError(absl::StrCat("the constraint was not compiled: ", why,
                                                        "; try again later")),
                    "CONSTRAINT_COMPILER_BUSY"),
      absl::Seconds(2));
}

absl::Status Interrupted() { return absl::CancelledError("nobody waits for the constraint"); }

}  // namespace

CompileGuard::CompileGuard(std::vector<std::string> command, const std::string* vocabulary,
                           const CompileLimits& limits)
    : command_(std::move(command)), vocabulary_(vocabulary), limits_(limits) {}

CompileGuard::~CompileGuard() {
  if (pid() != 0) Reap();
}

pid_t CompileGuard::pid() const {
  absl::MutexLock lock(&mu_);
  return pid_;
}

bool CompileGuard::interrupted() const {
  absl::MutexLock lock(&mu_);
  return interrupted_;
}

void CompileGuard::Interrupt() {
  absl::MutexLock lock(&mu_);
  interrupted_ = true;
  if (pid_ != 0) kill(pid_, SIGKILL);
}

void CompileGuard::Rearm() {
  absl::MutexLock lock(&mu_);
  interrupted_ = false;
}

absl::Status CompileGuard::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Busy("no socket for a process that compiles constraints");
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
    return Busy(absl::StrCat("cannot start ", command_[0]));
  }
  fd_ = ends[0];
  {
    absl::MutexLock lock(&mu_);
    pid_ = pid;
    if (interrupted_) kill(pid_, SIGKILL);
  }
  absl::Status status = WriteFrame(
      fd_, absl::StrCat(absl::ToInt64Seconds(limits_.cpu_time), " ", limits_.memory_bytes),
      kStartTime);
  if (status.ok()) status = WriteFrame(fd_, *vocabulary_, kStartTime);
  if (status.ok()) status = ReadFrame(fd_, kStartTime).status();
  if (status.ok()) return status;
  Reap();
  if (interrupted()) return Interrupted();
  return Busy(
      absl::StrCat("the process that compiles constraints does not start: ", status.message()));
}

int CompileGuard::Reap() {
  absl::MutexLock lock(&mu_);  // until it is collected: nobody kills who has its number next
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
  if (interrupted()) return Interrupted();
  if (pid() == 0) RETURN_IF_ERROR(Start());
  absl::Status status = WriteFrame(fd_, Message(constraint), limits_.wall_time);
  if (absl::IsUnavailable(status) && !interrupted()) {  // it was killed while nobody asked
    Reap();
    RETURN_IF_ERROR(Start());
    status = WriteFrame(fd_, Message(constraint), limits_.wall_time);
  }
  const absl::StatusOr<std::string> answer =
      status.ok() ? ReadFrame(fd_, limits_.wall_time) : absl::StatusOr<std::string>(status);
  if (answer.ok()) {
    return answer->empty() ? absl::OkStatus() : BadFieldError(constraint.Field(), *answer);
  }
  const bool late = absl::IsDeadlineExceeded(answer.status());
  const int ended = Reap();
  if (interrupted()) return Interrupted();
  const int signal = WIFSIGNALED(ended) ? WTERMSIG(ended) : 0;
  LogWarning("grammar: event=not_compiled field={} late={} signal={} again={}",
             std::string(constraint.Field()), late, signal, again);
  if (late) {  // else the kernel would have counted its seconds to the end
    return Busy(absl::StrCat("the machine gave it less than ",
                             absl::FormatDuration(limits_.cpu_time), " of processor time in ",
                             absl::FormatDuration(limits_.wall_time)));
  }
  // None of its bounds kills like that: somebody else did, maybe for somebody else's doing.
  if (signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP ||
      signal == SIGQUIT) {
    return again ? Busy("the process that does it was killed") : Try(constraint, /*again=*/true);
  }
  if (signal == SIGXCPU) {
    return BadFieldError(constraint.Field(),
                         absl::StrCat("does not compile within ",
                                      absl::FormatDuration(limits_.cpu_time), "; make it simpler"));
  }
  return BadFieldError(
      constraint.Field(),
      "does not compile within the memory and stack that it may have; make it simpler");
}

}  // namespace bitshard
