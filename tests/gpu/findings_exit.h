// How programs that a sanitizer watches end where the emulator watches instead of it.
#pragma once

#include <cstdio>

#include "kernels/cuda/emu/findings.h"

namespace bitshard {

// `status`; but what the emulator found wrong with the kernels goes to stderr, and the exit status
// is then 9, as check.sh asks of compute-sanitizer. On a GPU nothing is found here.
inline int ExitStatus(int status) {
  if (emu::Errors() == 0) return status;
  std::fprintf(stderr, "%s", emu::FindingsText().c_str());
  return 9;
}

}  // namespace bitshard
