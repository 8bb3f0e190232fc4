// Matrices, their weights made on the device: see roofline.h.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/device_matrix.h"
#include "kernels/tensor/synthetic.h"
#include "tests/gpu/roofline.h"
#include "tests/gpu/timing.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

// m rows, of which every 16th is the same.
std::vector<float> Rows(int64_t m, int64_t cols) {
  std::vector<float> x = RandomFloats(static_cast<size_t>(std::min<int64_t>(m, 16) * cols), 3);
  x.reserve(static_cast<size_t>(m * cols));
  for (int64_t i = 0; x.size() < static_cast<size_t>(m * cols); ++i)
    x.push_back(x[static_cast<size_t>(i)]);
  return x;
}

// Activations as the matrices read them, and where the results go.
struct Buffers {
  DeviceBuffer x, half, scale, run_sum, y, poison;
  DeviceActivations prepared;
};

absl::StatusOr<Buffers> MakeBuffers(Device& device, DeviceStream& stream, const LinearRoofline& of,
                                    int64_t m) {
  const int64_t rows = static_cast<int64_t>(of.spec.rows),
                cols = static_cast<int64_t>(of.spec.cols);
  Buffers b;
  DeviceActivations& form = b.prepared;
  form.cols = cols;
  form.padded_cols = (cols + kTileCols - 1) / kTileCols * kTileCols;
  form.segment_cols = of.segment_cols;
  const std::vector<float> x = Rows(m, cols);
  ASSIGN_OR_RETURN(b.x, UploadBytes(device, x.data(), x.size() * sizeof(float), stream));
  ASSIGN_OR_RETURN(b.half, device.Alloc(m * form.padded_cols * sizeof(uint16_t)));
  ASSIGN_OR_RETURN(b.scale, device.Alloc(m * form.segments() * sizeof(float)));
  ASSIGN_OR_RETURN(b.run_sum, device.Alloc(m * form.padded_cols / kLaneCols * sizeof(float)));
  ASSIGN_OR_RETURN(
      b.y, device.Alloc(m * rows * (of.segment_cols == 0 ? sizeof(float) : sizeof(int64_t))));
  ASSIGN_OR_RETURN(b.poison, device.Alloc(m * sizeof(int64_t)));
  RETURN_IF_ERROR(device.Fill(b.poison.data(), 0, b.poison.bytes(), stream));
  form.half = b.half.as<uint16_t>();
  form.scale = b.scale.as<float>();
  form.run_sum = b.run_sum.as<float>();
  form.x = b.x.as<float>();
  RETURN_IF_ERROR(device.kernels()->Prepare(b.x.as<float>(), cols, m, form, stream));
  RETURN_IF_ERROR(device.Sync(stream));
  return b;
}

}  // namespace

absl::StatusOr<std::vector<RooflineLine>> MeasureLinear(Device& device, const LinearRoofline& of,
                                                        absl::Span<const int> ms,
                                                        const Ceilings& ceilings,
                                                        const RooflineSize& size) {
  const PackedSpec& spec = of.spec;
  RETURN_IF_ERROR(CheckSynthetic(spec));
  const DeviceKernels& kernels = *device.kernels();
  const int64_t rows = static_cast<int64_t>(spec.rows), cols = static_cast<int64_t>(spec.cols);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  ASSIGN_OR_RETURN(const DeviceMatrixLayout layout, LayoutOnDevice(spec));
  const int copies = static_cast<int>(size.rotate_bytes / layout.bytes) + 1;
  std::vector<DeviceBuffer> blobs;
  std::vector<DeviceMatrix> matrices;
  const SyntheticSource source = SyntheticSourceOf(7, "roofline", spec, spec.cols, 0, 0);
  ASSIGN_OR_RETURN(const DeviceBuffer first, device.Alloc(layout.bytes));
  RETURN_IF_ERROR(device.Fill(first.data(), 0, layout.bytes, *stream));
  RETURN_IF_ERROR(kernels.MakeSynthetic(spec, layout, source, first.data(), *stream));
  for (int i = 0; i < copies; ++i) {
    ASSIGN_OR_RETURN(DeviceBuffer blob, device.Alloc(layout.bytes));
    RETURN_IF_ERROR(device.Copy(blob.data(), first.data(), layout.bytes, *stream));
    matrices.push_back(MatrixOnDevice(spec, layout, blob.data()));
    blobs.push_back(std::move(blob));
  }
  RETURN_IF_ERROR(device.Sync(*stream));

  std::vector<RooflineLine> lines;
  for (const int m : ms) {
    ASSIGN_OR_RETURN(const Buffers b, MakeBuffers(device, *stream, of, m));
    const auto enqueue = [&]() -> absl::Status {
      for (const DeviceMatrix& matrix : matrices) {
        DeviceLinear member;
        member.w = &matrix;
        member.stride = rows;
        member.deterministic = of.deterministic;
        if (of.segment_cols == 0) {
          member.y = b.y.as<float>();
        } else {
          member.sums = b.y.as<int64_t>();
          member.poison = b.poison.as<int64_t>();
          member.segments_total = b.prepared.segments();
        }
        RETURN_IF_ERROR(kernels.Linear({&member, 1}, b.prepared, m, *stream));
      }
      return absl::OkStatus();
    };
    RooflineLine line;
    line.what = absl::StrCat(spec.Describe(), " ", rows, "x", cols, " m=", m);
    if (of.segment_cols != 0) absl::StrAppend(&line.what, " segments of ", of.segment_cols);
    if (!of.deterministic) absl::StrAppend(&line.what, " any order");
    line.bytes = layout.bytes + b.half.bytes() + b.y.bytes();
    line.flops = 2.0 * m * static_cast<double>(rows) * static_cast<double>(cols);
    if (m == 1 && of.segment_cols == 0 && layout.bytes >= kBarBytes) line.bar = kVectorBar;
    ASSIGN_OR_RETURN(line,
                     TimeLine(device, *stream, std::move(line), copies, ceilings, size, enqueue));
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace bitshard
