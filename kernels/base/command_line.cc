#include "kernels/base/command_line.h"

#include <algorithm>
#include <cstring>

#include "absl/flags/parse.h"

namespace bitshard {

std::vector<std::string> ParseCommandLine(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") == 0) break;
    if (std::strncmp(argv[i], "--", 2) != 0) continue;
    char* const name = argv[i] + 2;
    std::replace(name, name + std::strcspn(name, "="), '-', '_');
  }
  const std::vector<char*> left = absl::ParseCommandLine(argc, argv);
  return std::vector<std::string>(left.begin() + 1, left.end());
}

}  // namespace bitshard
