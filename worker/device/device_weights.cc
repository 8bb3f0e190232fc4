#include "worker/device/device_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/registry/device_kernels.h"

namespace bitshard {
namespace {

constexpr size_t kVectorAlignment = 256;
// What one thread puts in order at a time.
constexpr uint64_t kPieceBytes = 256 << 10;

}  // namespace

class DeviceWeightSink final : public WeightSink {
 public:
  DeviceWeightSink(Device& device, size_t weights, ThreadPool& pool, size_t staging_bytes)
      : device_(device),
        pool_(pool),
        staging_bytes_(staging_bytes),
        weights_(std::make_shared<DeviceWeights>()) {
    weights_->matrices_.resize(weights);
    weights_->vectors_.resize(weights, nullptr);
  }

  // Nothing is freed that a copy still reads or writes.
  ~DeviceWeightSink() override {
    for (Staging& staging : staging_) {
      if (staging.stream != nullptr) device_.Sync(*staging.stream).IgnoreError();
    }
  }

  absl::Status Init() {
    for (Staging& staging : staging_) {
      ASSIGN_OR_RETURN(staging.memory, device_.AllocHost(staging_bytes_));
      ASSIGN_OR_RETURN(staging.stream, device_.NewStream());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Take(uint32_t weight, const PackedMatrix& matrix) override {
    ASSIGN_OR_RETURN(const DeviceMatrixLayout layout, Place(weight, matrix.spec()));
    const DeviceWeights::Matrix& out = weights_->matrices_[weight];
    for (uint64_t begin = 0; begin < layout.bytes; begin += staging_bytes_) {
      const uint64_t end = std::min<uint64_t>(layout.bytes, begin + staging_bytes_);
      RETURN_IF_ERROR(Send(out.blob.data() + begin, end - begin, [&](uint8_t* to) {
        pool_.ParallelFor(
            static_cast<int64_t>(CeilDiv(end - begin, kPieceBytes)), [&](int64_t i, int) {
              const uint64_t from = begin + static_cast<uint64_t>(i) * kPieceBytes;
              CopyInDeviceOrder(matrix, layout, from, std::min(end, from + kPieceBytes),
                                to + (from - begin));
            });
      }));
    }
    return layout.bytes;
  }

  absl::StatusOr<uint64_t> Make(uint32_t weight, const PackedSpec& spec,
                                const SyntheticSource& source) override {
    if (device_.kernels() == nullptr) {
      return absl::UnimplementedError(absl::StrCat("a device of kind ", device_.facts().kind,
                                                   " cannot make synthetic weights"));
    }
    ASSIGN_OR_RETURN(const DeviceMatrixLayout layout, Place(weight, spec));
    RETURN_IF_ERROR(device_.kernels()->MakeSynthetic(
        spec, layout, source, weights_->matrices_[weight].blob.data(), *staging_[0].stream));
    return layout.bytes;
  }

  absl::StatusOr<std::shared_ptr<const DeviceWeights>> Finish(
      const std::vector<std::vector<float>>& vectors) override {
    uint64_t bytes = 0;
    for (const std::vector<float>& vector : vectors) {
      bytes += RoundUp(vector.size() * sizeof(float), kVectorAlignment);
    }
    if (bytes > 0) {
      ASSIGN_OR_RETURN(weights_->vector_memory_, device_.Alloc(bytes));
    }
    uint8_t* at = weights_->vector_memory_.data();
    for (size_t i = 0; i < vectors.size(); ++i) {
      const size_t size = vectors[i].size() * sizeof(float);
      if (size == 0) continue;
      weights_->vectors_[i] = reinterpret_cast<const float*>(at);
      const uint8_t* const from = reinterpret_cast<const uint8_t*>(vectors[i].data());
      for (size_t begin = 0; begin < size; begin += staging_bytes_) {
        const size_t piece = std::min(size - begin, staging_bytes_);
        RETURN_IF_ERROR(
            Send(at + begin, piece, [&](uint8_t* to) { std::memcpy(to, from + begin, piece); }));
      }
      at += RoundUp(size, kVectorAlignment);
    }
    weights_->bytes_ += bytes;
    for (Staging& staging : staging_) RETURN_IF_ERROR(device_.Sync(*staging.stream));
    return std::shared_ptr<const DeviceWeights>(std::move(weights_));
  }

 private:
  // Memory for the matrix, and its view.
  absl::StatusOr<DeviceMatrixLayout> Place(uint32_t weight, const PackedSpec& spec) {
    ASSIGN_OR_RETURN(const DeviceMatrixLayout layout, LayoutOnDevice(spec));
    DeviceWeights::Matrix& out = weights_->matrices_[weight];
    absl::StatusOr<DeviceBuffer> blob = device_.Alloc(layout.bytes);
    if (!blob.ok()) {
      return WithContext(
          blob.status(),
          absl::StrCat("weights: ", weights_->bytes_, " bytes are on the device, the next matrix (",
                       spec.Describe(), ", ", spec.rows, " x ", spec.cols,
                       ") does not fit; use more workers, or a narrower weight format: "));
    }
    out.blob = *std::move(blob);
    out.view = MatrixOnDevice(spec, layout, out.blob.data());
    weights_->bytes_ += layout.bytes;
    return layout;
  }

  struct Staging {
    DeviceBuffer memory;
    std::unique_ptr<DeviceStream> stream;  // of the copies from it
  };

  // `bytes` of what `fill` writes, at most staging_bytes_, to `to` on the device.
  template <typename Fill>
  absl::Status Send(uint8_t* to, size_t bytes, const Fill& fill) {
    Staging& staging = staging_[turn_++ % 2];
    RETURN_IF_ERROR(device_.Sync(*staging.stream));  // the last copy from it
    fill(staging.memory.data());
    return device_.Copy(to, staging.memory.data(), bytes, *staging.stream);
  }

  Device& device_;
  ThreadPool& pool_;
  const size_t staging_bytes_;
  std::shared_ptr<DeviceWeights> weights_;
  Staging staging_[2];
  size_t turn_ = 0;
};

absl::StatusOr<std::unique_ptr<WeightSink>> MakeDeviceWeightSink(Device& device, size_t weights,
                                                                 ThreadPool& pool,
                                                                 size_t staging_bytes) {
  auto sink = std::make_unique<DeviceWeightSink>(device, weights, pool, staging_bytes);
  RETURN_IF_ERROR(sink->Init());
  return std::unique_ptr<WeightSink>(std::move(sink));
}

}  // namespace bitshard
