// roofline: every width of weights and both kinds of heads against the device's copy rate; a table
// on stdout.
#include <cstdio>
#include <utility>

#include "kernels/base/status_macros.h"
#include "tests/gpu/roofline.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

// Rows and columns: an attention projection, gate and up, down.
constexpr std::pair<uint64_t, uint64_t> kShapes[] = {{4096, 4096}, {28672, 4096}, {8192, 14336}};

absl::Status Run() {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice("cuda", 0));
  ASSIGN_OR_RETURN(const double rate, MeasureCopyRate(*device, kRooflineSize));
  std::printf("# %s, copies read and write %.0f GB/s; the data sheet says %.0f\n%s\n",
              device->facts().name.c_str(), rate / 1e9,
              static_cast<double>(device->facts().bandwidth_bytes_per_s) / 1e9,
              RooflineHead().c_str());
  const auto show = [](const absl::StatusOr<RooflineLine>& line) -> absl::Status {
    if (!line.ok()) return line.status();
    std::printf("%s\n", RooflineText(*line).c_str());
    std::fflush(stdout);  // what was measured stays when the time runs out
    return absl::OkStatus();
  };
  for (const int m : {1, 4, 16, 64}) {
    for (const auto& [rows, cols] : kShapes) {
      for (int bits = 2; bits <= 8; ++bits) {
        RETURN_IF_ERROR(
            show(MeasureLinear(*device, IntSpec(rows, cols, {bits, 128}), m, rate, kRooflineSize)));
      }
      RETURN_IF_ERROR(show(MeasureLinear(*device, Q4Spec(rows, cols), m, rate, kRooflineSize)));
      RETURN_IF_ERROR(
          show(MeasureLinear(*device, {.rows = rows, .cols = cols, .type = PackedSpec::Type::kBf16},
                             m, rate, kRooflineSize)));
    }
    if (m > 16) continue;
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3, KvType::kInt8}) {
      for (const int64_t context : {1024, 16384}) {
        RETURN_IF_ERROR(
            show(MeasureAttention(*device, {.type = type, .kv_heads = 8, .head_dim = 128}, 32, m,
                                  context, rate, kRooflineSize)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace bitshard

int main() {
  const absl::Status status = bitshard::Run();
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
