#include "coordinator/stack_thread.h"

#include <memory>
#include <utility>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

using Work = std::function<void()>;

void* Run(void* argument) {
  const std::unique_ptr<Work> work(static_cast<Work*>(argument));
  (*work)();
  return nullptr;
}

bool Make(Work work, bool detached, pthread_t* thread) {
  pthread_attr_t attributes;
  CHECK_EQ(pthread_attr_init(&attributes), 0);
  CHECK_EQ(pthread_attr_setstacksize(&attributes, kThreadStackBytes), 0);
  if (detached) CHECK_EQ(pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED), 0);
  auto owned = std::make_unique<Work>(std::move(work));
  const bool made = pthread_create(thread, &attributes, &Run, owned.get()) == 0;
  if (made) (void)owned.release();  // it is the thread's
  pthread_attr_destroy(&attributes);
  return made;
}

}  // namespace

StackThread::StackThread(Work work) {
  CHECK(Make(std::move(work), /*detached=*/false, &thread_)) << "no thread can be made";
}

StackThread::~StackThread() { CHECK(joined_) << "nobody has waited for a thread"; }

void StackThread::Join() {
  if (!std::exchange(joined_, true)) CHECK_EQ(pthread_join(thread_, nullptr), 0);
}

bool RunDetached(Work work) {
  pthread_t thread;
  return Make(std::move(work), /*detached=*/true, &thread);
}

void SetDefaultThreadStack() {
  pthread_attr_t attributes;
  CHECK_EQ(pthread_getattr_default_np(&attributes), 0);
  size_t bytes = 0;
  CHECK_EQ(pthread_attr_getstacksize(&attributes, &bytes), 0);
  if (bytes < kThreadStackBytes) {
    CHECK_EQ(pthread_attr_setstacksize(&attributes, kThreadStackBytes), 0);
    CHECK_EQ(pthread_setattr_default_np(&attributes), 0);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace bitshard
