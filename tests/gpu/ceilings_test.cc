#include "tests/gpu/ceilings.h"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/emu/findings.h"
#include "tests/gpu/probes.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

constexpr CeilingsSize kSmall = {
    .copy_bytes = 1 << 12, .matrix = 40, .mma_launches = 2, .mma_rounds = 3, .repetitions = 2};
const char* const kFakeCublas = "tests/gpu/libfake_cublas.so";

absl::StatusOr<Ceilings> Measure(const std::string& cublas) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  EXPECT_TRUE(device.ok()) << device.status();
  absl::StatusOr<Ceilings> ceilings = MeasureCeilings(**device, kSmall, cublas);
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
  return ceilings;
}

// The times are the emulator's and mean nothing.
TEST(Ceilings, AreMeasuredWithAndWithoutCublas) {
  const absl::StatusOr<Ceilings> with = Measure(kFakeCublas);
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_GT(with->copy_bytes_per_s, 0);
  EXPECT_GT(with->mma_sync_flops_per_s, 0);
  EXPECT_GT(with->cublas_flops_per_s, 0);
  EXPECT_EQ(with->matrix_flops_per_s(), with->cublas_flops_per_s);

  const absl::StatusOr<Ceilings> without = Measure("/nowhere/libcublas.so.13");
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->cublas_flops_per_s, 0);
  EXPECT_THAT(without->cublas, HasSubstr("/nowhere/libcublas.so.13"));
  EXPECT_EQ(without->matrix_flops_per_s(), without->mma_sync_flops_per_s);

  // A library, but another one.
  const absl::StatusOr<Ceilings> other = Measure("libm.so.6");
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(other->cublas, HasSubstr("no cublasCreate_v2"));
}

TEST(Ceilings, AWrongProductIsAnError) {
  setenv("BITSHARD_FAKE_CUBLAS_WRONG", "1", 1);
  const absl::StatusOr<Ceilings> wrong = Measure(kFakeCublas);
  unsetenv("BITSHARD_FAKE_CUBLAS_WRONG");
  EXPECT_EQ(wrong.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(wrong.status().message(), HasSubstr("of the product is"));
}

TEST(Ceilings, ComeBackFromTheirFile) {
  Ceilings ceilings;
  ceilings.device = "NVIDIA \"H200\"";
  ceilings.driver = "13.0";
  ceilings.copy_bytes_per_s = 4.2e12;
  ceilings.mma_sync_flops_per_s = 6.5e14;
  ceilings.cublas = "no cuBLAS: none";
  const std::string path = testing::TempDir() + "/ceilings.json";
  std::ofstream(path) << CeilingsJson(ceilings);
  const absl::StatusOr<Ceilings> back = ReadCeilings(path);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(CeilingsJson(*back), CeilingsJson(ceilings));

  EXPECT_EQ(ReadCeilings(path + ".none").status().code(), absl::StatusCode::kNotFound);
  const auto error_of = [&](const std::string& text) {
    std::ofstream(path) << text;
    return std::string(ReadCeilings(path).status().message());
  };
  EXPECT_THAT(error_of("{"), HasSubstr("no JSON object"));
  EXPECT_THAT(error_of("{\"copy_bytes_per_s\": \"fast\"}"), HasSubstr("copy_bytes_per_s"));
  ceilings.mma_sync_flops_per_s = 0;
  EXPECT_THAT(error_of(CeilingsJson(ceilings)), HasSubstr("not above 0"));
}

TEST(Probes, AChainIsItsSteps) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice("cuda", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  std::unique_ptr<DeviceStream> stream = *(*device)->NewStream();
  uint64_t word = 5;
  const DeviceBuffer there = *(*device)->Alloc(sizeof(word));
  ASSERT_TRUE((*device)->Copy(there.data(), &word, sizeof(word), *stream).ok());
  ASSERT_EQ(LaunchChain(there.as<uint64_t>(), 1000, stream->native()), 0);
  ASSERT_TRUE((*device)->Copy(&word, there.data(), sizeof(word), *stream).ok());
  ASSERT_TRUE((*device)->Sync(*stream).ok());
  EXPECT_EQ(word, ChainResult(5, 1000));
  EXPECT_EQ(ChainResult(ChainResult(5, 400), 600), word);
  EXPECT_EQ(ChainResult(5, 0), 5u);
}

}  // namespace
}  // namespace bitshard
