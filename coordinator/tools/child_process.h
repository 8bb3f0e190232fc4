// A program of ours that a verb starts and looks after (local_service.h). Not thread-safe; start
// from the main thread only: the kernel kills a child when the thread that started it ends.
#pragma once

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "absl/status/statusor.h"

namespace bitshard {

class ChildProcess {
 public:
  // `command[0]` is the program's path. The child has its own process group, so that Ctrl-C reaches
  // us alone, and dies with us whatever happens.
  static absl::StatusOr<ChildProcess> Start(const std::vector<std::string>& command);

  pid_t pid() const { return pid_; }
  // Collects the child when it has ended. nullopt while it runs; else "exit code 1", "signal 9
  // (Killed)".
  std::optional<std::string> Ended();
  // Of an ended child: its exit code, 128 + N after signal N.
  int exit_code() const { return exit_code_; }
  void Signal(int signal) const;

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_;
  std::optional<std::string> ended_;
  int exit_code_ = 0;
};

// The path of a program of ours: in `folder` when given, else beside this program, else where the
// build put it.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& folder);

}  // namespace bitshard
