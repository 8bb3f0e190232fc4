// Ranks as real processes: children of the test, forked before it has threads.
#pragma once

#include <functional>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "kernels/base/check.h"

namespace bitshard {

class ForkedRanks {
 public:
  // Child `rank` runs `body(rank)` and ends; an empty text means success, any other is its
  // complaint.
  ForkedRanks(int first, int world, const std::function<std::string(int)>& body) {
    for (int rank = first; rank < world; ++rank) {
      int ends[2];
      CHECK(pipe(ends) == 0);
      const pid_t pid = fork();
      CHECK(pid >= 0);
      if (pid == 0) {
        close(ends[0]);
        const std::string text = body(rank);
        const ssize_t written = write(ends[1], text.data(), text.size());
        _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
      }
      close(ends[1]);
      children_.push_back({.pid = pid, .fd = ends[0], .done = false, .text = {}});
    }
  }
  ~ForkedRanks() {
    for (size_t i = 0; i < children_.size(); ++i) Wait(i);
  }

  pid_t pid(size_t child) const { return children_[child].pid; }

  // What child `child` (counted from the first) complained about; "killed" when a signal ended it.
  std::string Wait(size_t child) {
    Child& c = children_[child];
    if (c.done) return c.text;
    char buffer[4096];
    for (ssize_t n; (n = read(c.fd, buffer, sizeof(buffer))) > 0;) c.text.append(buffer, n);
    close(c.fd);
    int status = 0;
    CHECK(waitpid(c.pid, &status, 0) == c.pid);
    if (WIFSIGNALED(status)) c.text += "killed";
    c.done = true;
    return c.text;
  }

 private:
  struct Child {
    pid_t pid;
    int fd;
    bool done = false;
    std::string text;
  };
  std::vector<Child> children_;
};

}  // namespace bitshard
