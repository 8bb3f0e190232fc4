// The process that compile_guard.h starts, for tests of what starts it. With --hang it takes the
// first constraint and never answers, using no processor time.
#include <cstring>
#include <unistd.h>

#include "coordinator/grammar/compile_guard.h"
#include "coordinator/grammar/framed_pipe.h"

int main(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "--hang") != 0) return bitshard::RunCompileGuard();
  // Limits and vocabulary.
  for (int i = 0; i < 2; ++i) {
    if (!bitshard::ReadFrame(STDIN_FILENO, absl::InfiniteDuration()).ok()) return 1;
  }
  if (!bitshard::WriteFrame(STDIN_FILENO, "", absl::InfiniteDuration()).ok()) return 1;
  if (!bitshard::ReadFrame(STDIN_FILENO, absl::InfiniteDuration()).ok()) return 1;
  // Until the other side ends.
  (void)bitshard::ReadFrame(STDIN_FILENO, absl::InfiniteDuration());
  return 0;
}
