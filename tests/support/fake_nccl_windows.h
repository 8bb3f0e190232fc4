// Memory of the fake's ncclMemAlloc, and the windows of its communicators (fake_nccl.cc).
//
// Faults, from the environment of the rank's process; whom they concern as in fake_nccl_rank.h:
//   BITSHARD_FAKE_NCCL_VERSION   what ncclGetVersion says, 22605 for 2.26.5
//   BITSHARD_FAKE_NCCL_WINDOWS   refuse: registering is ncclInvalidUsage at once; none: a success
//                                without a handle; local: a handle of memory that the other ranks
//                                do not reach, as with NCCL's own NCCL_WIN_ENABLE=0; break: it
//                                fails in the background, and the communicator with it; hang: it
//                                goes on in the background until the communicator is aborted
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nccl.h>

namespace bitshard::fake {

struct NcclWindow {
  int32_t number = 0;  // of its communicator's windows: the same on all ranks
  const char* begin = nullptr;
  size_t bytes = 0;
  bool symmetric = true;  // sums are those of a window
  std::atomic<bool> registered{true};
};

// Of one communicator. Registered and deregistered by the thread that calls NCCL, or the one that
// meets for it; asked by it.
class NcclWindows {
 public:
  ~NcclWindows();

  ncclWindow_t Add(const void* begin, size_t bytes, bool symmetric);
  // False: there is no such window (any more).
  bool Remove(ncclWindow_t window);
  // That `at` lies in; null: none.
  std::shared_ptr<const NcclWindow> Find(const void* at) const;
  size_t live() const { return windows_.size(); }

 private:
  std::vector<std::shared_ptr<NcclWindow>> windows_;
  int32_t made_ = 0;
};

// What is wrong with such a window; empty: nothing.
std::string WrongWith(const void* begin, size_t bytes, int flags);

// Memory of ncclMemAlloc.
void NoteNcclMemory(void* data, size_t bytes);
// False: it was none, or there is a window in it.
bool ForgetNcclMemory(void* data);

void CountNcclMisuse(const std::string& what);

// The fault that the environment asks for, of rank `rank`; "" = none.
std::string NcclWindowFault(int rank);
int NcclVersion();

}  // namespace bitshard::fake
