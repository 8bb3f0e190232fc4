// ptx_vectors write FILE      runs every PTX wrapper on the device "cuda" and keeps the results
// ptx_vectors compare FILE    runs them and compares with such a file; exit status 1 if one is
// beyond its tolerance
//
// Built twice: on the emulator it writes the file that the GPU's results are compared with.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/tensor/device.h"
#include "tests/gpu/ptx_run.h"

namespace bitshard {
namespace {

int Run(const std::string& verb, const std::string& path) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  if (!device.ok()) {
    std::fprintf(stderr, "error: %s\n", device.status().ToString().c_str());
    return 1;
  }
  const absl::StatusOr<std::vector<uint32_t>> ours = RunPtxVectors(**device);
  if (!ours.ok()) {
    std::fprintf(stderr, "error: %s\n", ours.status().ToString().c_str());
    return 1;
  }
  const std::streamsize bytes = static_cast<std::streamsize>(ours->size() * sizeof(uint32_t));
  if (verb == "write") {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(ours->data()), bytes);
    if (!file.flush()) {
      std::fprintf(stderr, "error: cannot write %s\n", path.c_str());
      return 1;
    }
    return 0;
  }
  std::vector<uint32_t> theirs(ours->size());
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(theirs.data()), bytes) || file.get() != EOF) {
    std::fprintf(stderr, "error: %s does not hold %lld bytes\n", path.c_str(),
                 static_cast<long long>(bytes));
    return 1;
  }
  const std::vector<PtxDifference> differences = ComparePtxVectors(*ours, theirs);
  int beyond = 0;
  std::printf("field\twords\tunequal\tbeyond\tlargest\n");
  for (const PtxDifference& d : differences) {
    std::printf("%s\t%lld\t%lld\t%lld\t%.3g%s%s\n", d.field.c_str(),
                static_cast<long long>(d.words), static_cast<long long>(d.unequal),
                static_cast<long long>(d.beyond), d.largest, d.first.empty() ? "" : "\t",
                d.first.c_str());
    beyond += d.beyond != 0;
  }
  std::printf("%d of %zu fields beyond their tolerance\n", beyond, differences.size());
  return beyond == 0 ? 0 : 1;
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  const std::string verb = argc == 3 ? argv[1] : "";
  if (verb != "write" && verb != "compare") {
    std::fprintf(stderr, "usage: %s write|compare FILE\n", argv[0]);
    return 2;
  }
  return bitshard::Run(verb, argv[2]);
}
