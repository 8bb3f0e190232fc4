// ptx_vectors write FILE: runs every PTX wrapper on the device "cuda", keeps the results.
//
// ptx_vectors compare FILE [KEEP]: runs them, keeps the results in KEEP and compares with FILE;
// exit status 1 if a field is beyond its tolerance.
//
// Built twice: on the emulator it writes the file that the GPU's results are compared with.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"
#include "tests/gpu/ptx_run.h"

namespace bitshard {
namespace {

// The number of fields beyond their tolerance.
absl::StatusOr<int> Run(const std::string& verb, const std::string& path, const std::string& keep) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice("cuda", 0));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> ours, RunPtxVectors(*device));
  if (verb == "write") {
    RETURN_IF_ERROR(WritePtxFile(path, ours));
    return 0;
  }
  if (!keep.empty()) RETURN_IF_ERROR(WritePtxFile(keep, ours));
  ASSIGN_OR_RETURN(const std::vector<uint32_t> theirs, ReadPtxFile(path));
  const std::vector<PtxDifference> differences = ComparePtxVectors(ours, theirs);
  int beyond = 0;
  std::printf("%s\n", PtxHead().c_str());
  for (const PtxDifference& d : differences) {
    std::printf("%s\n", PtxText(d).c_str());
    beyond += d.beyond != 0;
  }
  std::printf("%d of %zu fields beyond their tolerance%s\n", beyond, differences.size(),
              ours.size() == PtxWords() ? "; WgmmaF16 is of sm_90 alone" : "");
  return beyond;
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  const std::string verb = argc == 3 || argc == 4 ? argv[1] : "";
  if (!(verb == "write" && argc == 3) && verb != "compare") {
    std::fprintf(stderr, "usage: %s write FILE | compare FILE [KEEP]\n", argv[0]);
    return 2;
  }
  const absl::StatusOr<int> beyond = bitshard::Run(verb, argv[2], argc == 4 ? argv[3] : "");
  if (!beyond.ok()) std::fprintf(stderr, "error: %s\n", beyond.status().ToString().c_str());
  return beyond.ok() && *beyond == 0 ? 0 : 1;
}
