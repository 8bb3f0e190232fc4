#include "worker/device/device_weights.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/support/fake_cudart.h"
#include "tests/worker/tiny_model.h"
#include "worker/load/loader.h"

namespace bitshard {
namespace {

class DeviceWeightsTest : public testing::Test {
 protected:
  DeviceWeightsTest() : machine_({}) {
    auto device = OpenDevice("cuda", 0);
    CHECK_OK(device.status());
    device_ = *std::move(device);
    auto stream = device_->NewStream();
    CHECK_OK(stream.status());
    stream_ = *std::move(stream);
  }

  void ExpectHostsWeights(const internal::RankPlan& plan);

  std::vector<uint8_t> Read(const void* from, size_t bytes) {
    std::vector<uint8_t> to(bytes);
    CHECK_OK(device_->Copy(to.data(), from, bytes, *stream_));
    CHECK_OK(device_->Sync(*stream_));
    return to;
  }

  const fake::ScopedCudaMachine machine_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
};

// The device holds what the host would. Staging buffers of a few bytes, so that every matrix goes
// in many pieces through both.
void DeviceWeightsTest::ExpectHostsWeights(const internal::RankPlan& plan) {
  ThreadPool pool(2);
  const auto host = LoadWeights(plan, pool, nullptr);
  ASSERT_TRUE(host.ok()) << host.status();
  const size_t count = (*host)->matrix_count();
  auto sink = MakeDeviceWeightSink(*device_, count, pool, /*staging_bytes=*/1000);
  ASSERT_TRUE(sink.ok()) << sink.status();
  const auto loaded = LoadWeights(plan, pool, nullptr, UINT64_MAX, sink->get());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  sink->reset();  // what it staged is over
  const DeviceWeights& weights = *(*loaded)->device;
  ASSERT_EQ(weights.count(), count);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const PackedMatrix& matrix = (*host)->matrices[i];
    const std::vector<float>& vector = (*host)->vectors[i];
    ASSERT_EQ(weights.matrix(i) == nullptr, matrix.rows() == 0) << i;
    ASSERT_EQ(weights.vector(i) == nullptr, vector.empty()) << i;
    if (!vector.empty()) {
      const std::vector<uint8_t> read = Read(weights.vector(i), vector.size() * sizeof(float));
      EXPECT_EQ(std::memcmp(read.data(), vector.data(), read.size()), 0) << i;
    }
    if (matrix.rows() == 0) continue;
    const auto layout = LayoutOnDevice(matrix.spec());
    ASSERT_TRUE(layout.ok()) << layout.status();
    std::vector<uint8_t> expected(layout->bytes);
    CopyInDeviceOrder(matrix, *layout, 0, layout->bytes, expected.data());
    std::vector<uint8_t> read = Read(weights.matrix(i)->codes - layout->codes, layout->bytes);
    // What lies between codes and scales is nobody's.
    const auto codes_end = static_cast<size_t>(layout->tile_bytes * matrix.row_tiles());
    for (size_t at = codes_end; at < std::min(layout->scales, layout->bytes); ++at)
      read[at] = expected[at];
    EXPECT_EQ(read, expected) << i;
    EXPECT_EQ((*loaded)->BytesOf(i), layout->bytes) << i;
    bytes += layout->bytes;
  }
  EXPECT_GT(bytes, 0u);
  EXPECT_GE(weights.bytes(), bytes);
}

TEST_F(DeviceWeightsTest, HoldEveryMatrixInTheDevicesOrderAndEveryVector) {
  TinyModelOptions options;
  options.format = "q4_1";
  ExpectHostsWeights(CutTinyModel(MakeTinyModel(options), 2)[1]);
}

TEST_F(DeviceWeightsTest, AreMadeOnTheDeviceWhereNoCheckpointHasThem) {
  TinyModelOptions options;
  options.format = "ct_int3 group=16 scale=f16 asym padded";
  TinyModel model = MakeTinyModel(options);
  model.index.set_synthetic_seed(5);
  ExpectHostsWeights(CutTinyModel(model, 2)[1]);
}

TEST_F(DeviceWeightsTest, AreRefusedWhereTheyDoNotFit) {
  const internal::RankPlan plan = CutTinyModel(MakeTinyModel(), 1)[0];
  ThreadPool pool(1);
  const size_t count = static_cast<size_t>(plan.graph().weights_size());
  auto sink = MakeDeviceWeightSink(*device_, count, pool);
  ASSERT_TRUE(sink.ok()) << sink.status();
  fake::FailCall("cudaMalloc", cudaErrorMemoryAllocation, /*skip=*/3);
  const absl::Status status = LoadWeights(plan, pool, nullptr, UINT64_MAX, sink->get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find("bytes are on the device"), std::string::npos) << status;
  EXPECT_FALSE(IsDeviceLost(status)) << status;
}

TEST_F(DeviceWeightsTest, SayThatTheDeviceIsLost) {
  const internal::RankPlan plan = CutTinyModel(MakeTinyModel(), 1)[0];
  ThreadPool pool(1);
  const size_t count = static_cast<size_t>(plan.graph().weights_size());
  auto sink = MakeDeviceWeightSink(*device_, count, pool);
  ASSERT_TRUE(sink.ok()) << sink.status();
  fake::FailCall("cudaMalloc", cudaErrorIllegalAddress, /*skip=*/3);
  const absl::Status status = LoadWeights(plan, pool, nullptr, UINT64_MAX, sink->get()).status();
  EXPECT_TRUE(IsDeviceLost(status)) << status;
}

}  // namespace
}  // namespace bitshard
