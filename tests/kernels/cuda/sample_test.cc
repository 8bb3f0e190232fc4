// CUDA's passes over rows of logits against the sampler's own (worker/sample/row_scan.h), bit for
// bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/cuda/emu/options.h"
#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "worker/sample/row_scan.h"
#include "worker/sample/token_order.h"

namespace bitshard {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CudaSample : public testing::Test {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

template <typename T>
T Pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

std::vector<float> RandomLogits(std::mt19937_64& random, size_t count) {
  std::vector<float> x(count);
  std::normal_distribution<float> normal;
  const float spread = Pick(random, {0.0f, 0.01f, 1.0f, 3.0f, 12.0f, 1000.0f, 1e-42f, 1e37f});
  const float shift = Pick(random, {0.0f, 0.0f, -40.0f, 1e6f});
  const uint64_t kind = random() % 9;
  for (float& v : x) {
    v = std::clamp(normal(random) * spread + shift, -3.4e38f, 3.4e38f);
    if (kind == 1) v = std::round(v);                     // many ties
    if (kind == 2) v = random() % 3 == 0 ? v : -3e38f;    // no probability, but finite
    if (kind == 3) v = random() % 2 == 0 ? 0.0f : -0.0f;  // equals that are not alike
    if (kind == 4) v = static_cast<float>(random() % 4) * 0.25f;
    if (kind == 5) v = random() % 64 == 0 ? -0.0f : -1.0f;  // about as many as are asked for
  }
  if (kind == 6) x[random() % count] = shift + 50;  // one that dwarfs the rest
  if (kind == 7) std::sort(x.begin(), x.end());
  if (kind == 8) std::sort(x.begin(), x.end(), std::greater<>());
  return x;
}

LogitScanRequest RandomRequest(std::mt19937_64& random) {
  LogitScanRequest request;
  request.candidates = Pick(random, {0u, 1u, 2u, 20u, 40u, 127u, 128u});
  request.draws = random() % 2 == 0 ? 1 : 0;
  request.temperature = Pick(random, {0.2f, 0.7f, 1.0f, 1.0f, 1.7f, 100.0f, 1e-30f, 1e-44f, 3e38f});
  request.choice = static_cast<uint32_t>(random() % 4);
  request.seed = random();
  request.position = random() % 3 == 0 ? random() : random() % 10'000;
  return request;
}

// Rows of one launch.
struct Batch {
  size_t count = 0, stride = 0;
  uint32_t begin = 0;
  std::vector<std::vector<float>> rows = {};
  std::vector<LogitScanRequest> requests = {};

  void Add(std::vector<float> row, const LogitScanRequest& request) {
    rows.push_back(std::move(row));
    requests.push_back(request);
  }
  // What lies between rows must not matter.
  DeviceBuffer Upload() const {
    std::vector<float> spread(rows.size() * stride, kNan);
    for (size_t r = 0; r < rows.size(); ++r)
      std::copy(rows[r].begin(), rows[r].end(), spread.begin() + r * stride);
    return TestGpu::Get().Upload(spread);
  }
  // Rows of the CPU.
  LogitsRow Row(size_t r, std::vector<float>& unit_max) const {
    unit_max.resize((count + kUnit - 1) / kUnit);
    SummarizeRow(rows[r].data(), begin, count, unit_max.data());
    return {.logits = rows[r].data(), .unit_max = unit_max.data(), .begin = begin, .count = count};
  }
};

struct Found {
  std::vector<LogitScan> scans;
  std::vector<std::vector<uint64_t>> keys;
};

Found Scan(const Batch& batch) {
  TestGpu& gpu = TestGpu::Get();
  const int64_t m = static_cast<int64_t>(batch.rows.size());
  uint32_t most = 0;
  for (const LogitScanRequest& request : batch.requests) most = std::max(most, request.candidates);
  const DeviceBuffer logits = batch.Upload(), requests = gpu.Upload(batch.requests);
  const DeviceBuffer scratch =
      gpu.Empty(gpu.kernels().ScanScratchBytes(m, static_cast<int64_t>(batch.count)));
  const DeviceBuffer scans = gpu.Empty(m * sizeof(LogitScan));
  const DeviceBuffer keys = gpu.Upload(std::vector<uint64_t>(m * most + 1));
  DeviceScan args;
  args.logits = logits.as<float>();
  args.stride = static_cast<int64_t>(batch.stride);
  args.m = m;
  args.count = static_cast<int64_t>(batch.count);
  args.begin = batch.begin;
  args.most = most;
  args.requests = requests.as<LogitScanRequest>();
  args.scratch = scratch.data();
  args.scans = scans.as<LogitScan>();
  args.keys = keys.as<uint64_t>();
  CHECK_OK(gpu.kernels().Scan(args, gpu.stream()));
  Found found;
  found.scans = gpu.Download<LogitScan>(scans, m);
  const std::vector<uint64_t> all = gpu.Download<uint64_t>(keys, m * most + 1);
  EXPECT_EQ(all.back(), 0u);
  for (int64_t r = 0; r < m; ++r) {
    const uint32_t n = std::min(found.scans[r].n_candidates, most);
    found.keys.emplace_back(all.begin() + r * most, all.begin() + r * most + n);
  }
  return found;
}

// The number of rows that were not bad.
int ExpectScansOfTheCpu(const Batch& batch, const std::string& what) {
  const Found found = Scan(batch);
  int good = 0;
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    const LogitScan& got = found.scans[r];
    const LogitScanRequest& asked = batch.requests[r];
    const std::string where =
        absl::StrCat(what, " row ", r, ": ", batch.count, " tokens from ", batch.begin, ", ",
                     asked.candidates, " candidates, temperature ", asked.temperature);
    std::vector<float> unit_max((batch.count + kUnit - 1) / kUnit);
    const RowSummary summary =
        SummarizeRow(batch.rows[r].data(), batch.begin, batch.count, unit_max.data());
    EXPECT_EQ(got.bad, summary.bad ? 1u : 0u) << where;
    if (summary.bad || got.bad != 0) continue;
    ++good;
    EXPECT_EQ(got.max, summary.max) << where;  // zeros of either sign are one maximum
    EXPECT_EQ(got.token, summary.token) << where;
    const LogitsRow row = {.logits = batch.rows[r].data(),
                           .unit_max = unit_max.data(),
                           .begin = batch.begin,
                           .count = batch.count};
    std::vector<uint64_t> scratch(1024), keys(asked.candidates);
    keys.resize(TopTokens(row, absl::MakeSpan(scratch), absl::MakeSpan(keys)));
    EXPECT_EQ(found.keys[r], keys) << where;
    if (asked.draws == 0) continue;
    const Draw draw =
        DrawFromRow(row, {.scale = {.temperature = asked.temperature}},
                    {.seed = asked.seed, .position = asked.position, .choice = asked.choice});
    EXPECT_EQ(got.draw_token, draw.token) << where;
    EXPECT_EQ(std::bit_cast<uint64_t>(got.draw_score), std::bit_cast<uint64_t>(draw.score))
        << where << ": " << got.draw_score << " for " << draw.score;
    EXPECT_EQ(std::bit_cast<uint32_t>(got.draw_logit), std::bit_cast<uint32_t>(draw.logit))
        << where;
  }
  return good;
}

TEST_F(CudaSample, ScansAreThoseOfTheCpu) {
  std::mt19937_64 random(1);
  // Whole and cut groups, units, chunks; more lists than are merged at once; a huge vocabulary.
  const std::vector<size_t> counts = {1,    2,    3,      63,     64,      65,     127,
                                      128,  129,  255,    1000,   4095,    4096,   4097,
                                      4160, 8192, 12'345, 40'000, 151'936, 270'000};
  int good = 0;
  for (const size_t count : counts) {
    for (const size_t gap : {0, 1, 4}) {
      const bool is_long = count > 5000;
      if (is_long && gap == 4) continue;
      if (count > 100'000 && (gap != 0 || emu::ChecksAccesses())) continue;
      Batch batch{
          .count = count, .stride = count + gap, .begin = Pick(random, {0u, 64u, 128'000u})};
      const int rows = emu::ChecksAccesses() ? 3 : is_long ? 4 : 12;
      for (int r = 0; r < rows; ++r) batch.Add(RandomLogits(random, count), RandomRequest(random));
      if (is_long) batch.requests[0].candidates = 128;
      good += ExpectScansOfTheCpu(batch, "random");
    }
  }
  EXPECT_GT(good, emu::ChecksAccesses() ? 100 : 400);
}

// A vocabulary that one block looks through, thousands of rows.
TEST_F(CudaSample, ManyShortRowsAreThoseOfTheCpu) {
  std::mt19937_64 random(2);
  const int batches = emu::ChecksAccesses() ? 3 : 60;
  for (int i = 0; i < batches; ++i) {
    const size_t count = 1 + random() % 1100;
    Batch batch{.count = count, .stride = count + random() % 5};
    for (int r = 0; r < 40; ++r) batch.Add(RandomLogits(random, count), RandomRequest(random));
    EXPECT_EQ(ExpectScansOfTheCpu(batch, absl::StrCat("batch ", i)), 40);
  }
}

TEST_F(CudaSample, NumbersThatAreNotFiniteAreSeenWhereverTheyAre) {
  std::mt19937_64 random(3);
  for (const size_t count : {1, 100, 4100, 9000}) {
    Batch batch{.count = count, .stride = count + 3};
    LogitScanRequest all;
    all.candidates = 128;
    all.draws = 1;
    for (const float bad : {kNan, -kNan, kInf, -kInf}) {
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        std::vector<float> row = RandomLogits(random, count);
        row[at] = bad;
        batch.Add(std::move(row), all);
      }
    }
    batch.Add(std::vector<float>(count, kNan), all);
    batch.Add(std::vector<float>(count, -kInf), all);
    batch.Add(RandomLogits(random, count), all);
    EXPECT_EQ(ExpectScansOfTheCpu(batch, "bad"), 1) << count;
  }
}

// Of a logit of 0 the score is the noise; a row of one token draws it, whatever it is.
TEST_F(CudaSample, NoiseIsThatOfTheCpuToTheLastBit) {
  std::mt19937_64 random(6);
  Batch batch{.count = 1, .stride = 1, .begin = 64};
  LogitScanRequest request;
  request.draws = 1;
  for (int r = 0; r < (emu::ChecksAccesses() ? 50 : 2000); ++r) {
    request.seed = random();
    request.position = random();
    request.choice = static_cast<uint32_t>(random());
    batch.Add({0.0f}, request);
  }
  EXPECT_EQ(ExpectScansOfTheCpu(batch, "noise"), static_cast<int>(batch.rows.size()));
}

// The first of the equals lie in one chunk, the last in another.
TEST_F(CudaSample, EqualsGoByTheirIdOverChunks) {
  LogitScanRequest all;
  all.candidates = 128;
  Batch batch{.count = 13'000, .stride = 13'000, .begin = 64};
  for (const size_t above : {0, 1, 100, 127, 128}) {
    for (const size_t step : {1, 37, 101, 4096}) {
      std::vector<float> row(batch.count, -5.0f);
      for (size_t i = step - 1; i < batch.count; i += step) row[i] = i % 2 == 0 ? 0.0f : -0.0f;
      for (size_t i = 0; i < above; ++i) row[batch.count - 1 - i * 97] = 1.0f + (i % 3);
      batch.Add(std::move(row), all);
    }
  }
  EXPECT_EQ(ExpectScansOfTheCpu(batch, "equals"), static_cast<int>(batch.rows.size()));
}

TEST_F(CudaSample, NoResultDependsOnTheOrderOfThreads) {
  std::mt19937_64 random(4);
  const emu::Options before = emu::GetOptions();
  for (const size_t count : {100, 8200}) {
    Batch batch{.count = count, .stride = count};
    for (int r = 0; r < 4; ++r) batch.Add(RandomLogits(random, count), RandomRequest(random));
    batch.requests[0].candidates = 128;  // of the fewer tokens all
    for (const emu::Order order : {emu::Order::kBackward, emu::Order::kShuffled}) {
      emu::SetOptions({.order = order, .seed = 5});
      ExpectScansOfTheCpu(batch, "other orders");
    }
    emu::SetOptions(before);
  }
}

void ExpectSumsOfTheCpu(const Batch& batch, const std::vector<LogitSumRequest>& requests) {
  TestGpu& gpu = TestGpu::Get();
  const int64_t m = static_cast<int64_t>(batch.rows.size());
  const DeviceBuffer logits = batch.Upload(), on_requests = gpu.Upload(requests);
  const DeviceBuffer sums = gpu.Upload(std::vector<LogitSums>(m));
  DeviceMassSums args;
  args.logits = logits.as<float>();
  args.stride = static_cast<int64_t>(batch.stride);
  args.m = m;
  args.count = static_cast<int64_t>(batch.count);
  args.requests = on_requests.as<LogitSumRequest>();
  args.sums = sums.as<LogitSums>();
  CHECK_OK(gpu.kernels().SumMasses(args, gpu.stream()));
  const std::vector<LogitSums> got = gpu.Download<LogitSums>(sums, m);
  for (int64_t r = 0; r < m; ++r) {
    const LogitSumRequest& asked = requests[r];
    std::vector<float> unit_max;
    const LogitsRow row = batch.Row(r, unit_max);
    const Scale scale = {.max = asked.max, .temperature = asked.temperature, .floor = asked.floor};
    EXPECT_EQ(got[r].raw, asked.raw != 0 ? RawSum(row, asked.max) : 0)
        << batch.count << " row " << r << " max " << asked.max;
    EXPECT_EQ(got[r].mass, asked.mass != 0 ? MassSum(row, scale) : 0)
        << batch.count << " row " << r << " max " << asked.max << " temperature "
        << asked.temperature << " floor " << asked.floor;
  }
}

TEST_F(CudaSample, SumsAreThoseOfTheCpu) {
  std::mt19937_64 random(5);
  for (const size_t count : {1, 15, 16, 17, 63, 64, 65, 1000, 1024, 1025, 4096, 4100, 20'000}) {
    Batch batch{.count = count, .stride = count + random() % 4};
    std::vector<LogitSumRequest> requests;
    const int rows = emu::ChecksAccesses() ? 6 : count > 5000 ? 12 : 40;
    for (int r = 0; r < rows; ++r) {
      std::vector<float> row = RandomLogits(random, count);
      LogitSumRequest request;
      request.raw = random() % 4 != 0 ? 1 : 0;
      request.mass = random() % 4 != 0 ? 1 : 0;
      // Of all ranks: this one may hold none of the likely tokens.
      request.max = *std::max_element(row.begin(), row.end()) +
                    Pick(random, {0.0f, 0.0f, 1.0f, 28.0f, 33.5f, 200.0f});
      request.temperature = Pick(random, {0.2f, 0.7f, 1.0f, 1.7f, 100.0f, 1e-30f, 3e38f});
      request.floor = Pick(random, {-kInf, -kInf, -2.9957323f, -0.6931472f, 0.0f, -20.7f, -100.0f});
      requests.push_back(request);
      batch.Add(std::move(row), {});
    }
    ExpectSumsOfTheCpu(batch, requests);
  }
}

TEST_F(CudaSample, WhatDoesNotFitIsRefused) {
  const DeviceKernels& kernels = TestGpu::Get().kernels();
  DeviceStream& stream = TestGpu::Get().stream();
  const auto scan = [&](int64_t m, int64_t count, int64_t stride, uint32_t begin, uint32_t most) {
    DeviceScan args;
    args.m = m;
    args.count = count;
    args.stride = stride;
    args.begin = begin;
    args.most = most;
    return kernels.Scan(args, stream);
  };
  EXPECT_TRUE(scan(0, 100, 100, 0, 128).ok());
  EXPECT_TRUE(scan(5, 0, 0, 0, 128).ok());
  EXPECT_EQ(scan(1, 100, 99, 0, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scan(kMaxScanRows + 1, 1, 1, 0, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scan(1, int64_t{1} << 31, int64_t{1} << 31, 0, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scan(1, 100, 100, 32, 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scan(1, 100, 100, 0, 129).code(), absl::StatusCode::kInvalidArgument);
  DeviceMassSums sums;
  EXPECT_TRUE(kernels.SumMasses(sums, stream).ok());
  sums.m = -1;
  EXPECT_EQ(kernels.SumMasses(sums, stream).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitshard
