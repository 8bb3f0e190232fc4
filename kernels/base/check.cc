#include "kernels/base/check.h"

#include <cstdio>

namespace bitshard::check_internal {

void Die(const char* file, int line, const std::string& text) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, text.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace bitshard::check_internal
