#include "coordinator/tools/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace bitshard {

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  // The child tells through this pipe why it could not become the program; exec closes it.
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0)
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    execv(argv[0], argv.data());
    const int why = errno;
    [[maybe_unused]] const ssize_t written = write(report[1], &why, sizeof why);
    _exit(127);
  }
  const int fork_errno = errno;
  close(report[1]);
  int why = 0;
  const bool failed = pid > 0 && read(report[0], &why, sizeof why) == sizeof why;
  close(report[0]);
  if (pid < 0)
    return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(fork_errno)));
  if (failed) {
    waitpid(pid, nullptr, 0);
    return absl::NotFoundError(absl::StrCat(command[0], ": ", std::strerror(why)));
  }
  return ChildProcess(pid);
}

std::optional<std::string> ChildProcess::Ended() {
  if (ended_) return ended_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  if (WIFSIGNALED(status)) {
    exit_code_ = 128 + WTERMSIG(status);
    ended_ = absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  } else {
    exit_code_ = WEXITSTATUS(status);
    ended_ = absl::StrCat("exit code ", exit_code_);
  }
  return ended_;
}

void ChildProcess::Signal(int signal) const {
  if (!ended_) kill(pid_, signal);
}

absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& folder) {
  std::vector<std::string> candidates;
  if (!folder.empty()) {
    candidates.push_back(absl::StrCat(folder, "/", name));
  } else {
    char self[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) return absl::InternalError("cannot read /proc/self/exe");
    const std::string path(self, static_cast<size_t>(length));
    const std::string here = path.substr(0, path.rfind('/'));
    // Installed side by side; or in Bazel's output tree, where this program is in
    // coordinator/tools.
    candidates = {absl::StrCat(here, "/", name), absl::StrCat(here, "/../", name),
                  absl::StrCat(here, "/../../worker/", name)};
  }
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("no program ", name, " in ", candidates[0],
                                          "; --bin-dir=FOLDER says where it is"));
}

}  // namespace bitshard
