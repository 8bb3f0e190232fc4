// ceilings FILE [CUBLAS]: measures what the device can do and writes it to FILE as JSON; CUBLAS is
// the path of libcublas, where the loader does not find it.
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "kernels/base/status_macros.h"
#include "tests/gpu/ceilings.h"

namespace bitshard {
namespace {

#ifdef BITSHARD_EMULATED_SIZES  // what the emulator gets through: its times mean nothing
constexpr CeilingsSize kSize = {
    .copy_bytes = 1 << 20, .matrix = 64, .mma_launches = 2, .mma_rounds = 2, .repetitions = 2};
#else
constexpr CeilingsSize kSize;
#endif

absl::Status Run(const std::string& path, const std::string& cublas_path) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice("cuda", 0));
  ASSIGN_OR_RETURN(const Ceilings c, MeasureCeilings(*device, kSize, cublas_path));
  const std::string json = CeilingsJson(c);
  std::ofstream file(path);
  file << json;
  if (!file.flush()) return absl::UnavailableError("cannot write " + path);
  std::printf("%s", json.c_str());
  const std::string cublas =
      c.cublas_flops_per_s > 0
          ? std::to_string(static_cast<int>(c.cublas_flops_per_s / 1e12)) + " TFLOP/s by cuBLAS"
          : c.cublas;
  std::printf(
      "%s: copies %.0f GB/s read and written (data sheet %.0f), bf16 %.0f TFLOP/s by "
      "mma.sync, %s\n",
      c.device.c_str(), c.copy_bytes_per_s / 1e9, c.data_sheet_bytes_per_s / 1e9,
      c.mma_sync_flops_per_s / 1e12, cublas.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s FILE [CUBLAS]\n", argv[0]);
    return 2;
  }
  const absl::Status status = bitshard::Run(argv[1], argc == 3 ? argv[2] : "");
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
