// Threads whose stack is of our choice, whatever the machine's default is (ulimit -s): what
// recurses over callers' or models' input has bounds that were chosen for this size.
#pragma once

#include <cstddef>
#include <functional>
#include <pthread.h>

namespace bitshard {

inline constexpr size_t kThreadStackBytes = size_t{8} << 20;

// Joined by its owner, once, before it goes.
class StackThread {
 public:
  explicit StackThread(std::function<void()> work);
  ~StackThread();
  StackThread(const StackThread&) = delete;
  StackThread& operator=(const StackThread&) = delete;

  void Join();

 private:
  pthread_t thread_;
  bool joined_ = false;
};

// Runs `work` on a thread that nobody waits for. It must own all it uses. False when there can be
// no more threads.
[[nodiscard]] bool RunDetached(std::function<void()> work);

// Threads that libraries of this process make from now on have at least this stack, too. Once, at
// the begin of main.
void SetDefaultThreadStack();

}  // namespace bitshard
