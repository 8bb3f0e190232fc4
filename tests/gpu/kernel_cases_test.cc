#include "tests/gpu/kernel_cases.h"

#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "kernels/cuda/emu/findings.h"
#include "kernels/cuda/emu/options.h"
#include "tests/gpu/case_file.h"
#include "tests/gpu/counter_join.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

// In the check build too: each access is right, all that is kept was written.
TEST(KernelCases, EveryKernelIsLaunchedOnceAndCounted) {
  std::vector<LaunchCounters> counted;
  std::string last;
  CaseOptions options;
  options.with_reference = true;
  options.hooks.before = [&](const std::string& launch) {
    last = launch;
    emu::ResetCounters();
  };
  options.hooks.after = [&](const std::string& launch) {
    EXPECT_EQ(launch, last);
    counted.push_back(CountersOf(launch, emu::GetCounters()));
  };
  const std::vector<CaseOutput> outputs = RunCases(CaseSet::kSmall, options);
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();

  ASSERT_EQ(outputs.size(), counted.size());
  std::set<std::string> names;
  int with_reference = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const CaseOutput& output = outputs[i];
    EXPECT_TRUE(names.insert(output.launch).second) << output.launch;
    EXPECT_EQ(output.error, "") << output.launch;
    EXPECT_FALSE(output.bytes.empty()) << output.launch;
    EXPECT_LE(output.reference_error, output.reference_bound) << output.launch;
    with_reference += output.reference_error >= 0;
    EXPECT_EQ(counted[i].launch, output.launch);
    // Parts that are folded, codes and scales: kernels of their own.
    const bool two = absl::StartsWith(output.launch, "scan ") ||
                     absl::StartsWith(output.launch, "synthetic int");
    EXPECT_EQ(counted[i].launches, two ? 2u : 1u) << output.launch;
    EXPECT_GT(counted[i].blocks, 0u) << output.launch;
    if (emu::ChecksAccesses()) {
      EXPECT_GT(counted[i].write_sectors, 0u) << output.launch;
    }
  }
  EXPECT_GT(with_reference, 10);
  // Of each family of kernels one.
  std::string all;
  for (const std::string& name : names) all += name + "\n";
  for (const char* family :
       {"cuda/linear_w2 ", "cuda/linear_w5 ", "cuda/linear_w8 ", "cuda/linear_plain ",
        "cuda/linear_f16 ", "cuda/linear_bf16 ", "append int8 ", "attend fp8_e4m3 ", "norm ",
        "prepare ", "silu ", "gelu ", "sum ", "add ", "gather_rows ", "gather int",
        "rotate halves ", "rotate pairs ", "mark"})
    EXPECT_THAT(all, HasSubstr(family));

  const absl::StatusOr<std::vector<LaunchCounters>> back =
      ParseCountersTable(CountersTable(counted));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(CountersTable(*back), CountersTable(counted));
}

TEST(KernelCases, ResultsComeBackFromTheirFileAndAreEqual) {
  if (emu::ChecksAccesses()) GTEST_SKIP() << "the plain build does it";
  const std::vector<CaseOutput> outputs = RunCases(CaseSet::kCalibration, {});
  EXPECT_EQ(outputs.size(), 8u);
  const std::string path = testing::TempDir() + "/cases.bin";
  ASSERT_TRUE(WriteCases(path, outputs).ok());
  const absl::StatusOr<std::vector<CaseOutput>> stored = ReadCases(path);
  ASSERT_TRUE(stored.ok()) << stored.status();
  emu::SetOptions({.order = emu::Order::kBackward});
  const std::vector<CaseOutput> again = RunCases(CaseSet::kCalibration, {});
  emu::SetOptions({});
  for (const CaseDifference& d : CompareCases(again, *stored)) {
    EXPECT_EQ(d.failure, "") << d.launch;
    EXPECT_EQ(d.equal, d.values) << d.launch;
    EXPECT_EQ(d.norm_error, 0) << d.launch;
  }
}

std::vector<uint8_t> BytesOf(const std::vector<float>& values) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
  return {bytes, bytes + values.size() * sizeof(float)};
}

CaseOutput Floats(const std::string& launch, const std::vector<float>& values) {
  return {
      .launch = launch, .error = "", .kind = CaseOutput::Kind::kFloats, .bytes = BytesOf(values)};
}

TEST(CaseFile, DifferencesAreSaid) {
  const std::vector<CaseOutput> stored = {Floats("a", {3, 4}),
                                          {.launch = "b", .error = "", .bytes = {1, 2, 3}}};
  const auto compare = [&](const CaseOutput& ours) {
    return CompareCases(std::vector<CaseOutput>{ours}, stored)[0];
  };
  CaseDifference d = compare(Floats("a", {3, 4.001f}));
  EXPECT_EQ(d.equal, 1u);
  EXPECT_EQ(d.values, 2u);
  EXPECT_NEAR(d.norm_error, 0.001 / 5, 1e-7);
  EXPECT_NEAR(d.largest, 0.001 / std::sqrt(12.5), 1e-7);
  EXPECT_EQ(d.failure, "");
  EXPECT_THAT(CaseText(d), HasSubstr("a\t2\t0.5000\t0.0002\t"));
  EXPECT_THAT(compare(Floats("a", {3, 4.1f})).failure, HasSubstr("apart"));
  EXPECT_THAT(compare(Floats("a", {3, NAN})).failure, HasSubstr("apart"));
  EXPECT_THAT(compare(Floats("a", {3})).failure, HasSubstr("4 bytes for 8"));
  EXPECT_THAT(compare(Floats("c", {3})).failure, HasSubstr("nothing is stored"));
  CaseOutput far = Floats("a", {3, 4});
  far.reference_error = 0.5;
  EXPECT_THAT(compare(far).failure, HasSubstr("0.5 from the reference"));
  far.error = "no such kernel";
  EXPECT_EQ(compare(far).failure, "no such kernel");
  d = compare({.launch = "b", .error = "", .bytes = {1, 9, 3}});
  EXPECT_EQ(d.failure, "byte 1 is 0x09 for 0x02");
  EXPECT_EQ(d.equal, 2u);
}

TEST(CaseFile, FilesThatDoNotFitAreRefused) {
  const std::string path = testing::TempDir() + "/cases.bin";
  const std::vector<CaseOutput> outputs = {Floats("of one", {1, 2})};
  ASSERT_TRUE(WriteCases(path, outputs).ok());
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const auto code_of = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    return ReadCases(path).status().code();
  };
  EXPECT_EQ(code_of(good), absl::StatusCode::kOk);
  for (size_t size = 0; size < good.size(); ++size) {
    // A file that ends right behind its first line is one without cases.
    if (size == good.find('\n') + 1) continue;
    EXPECT_EQ(code_of(good.substr(0, size)), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(code_of(good + "more"), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code_of(good + "9 1 x\ny"), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadCases(path + ".none").status().code(), absl::StatusCode::kNotFound);
  CaseOutput failed = outputs[0];
  failed.error = "no such kernel";
  EXPECT_EQ(WriteCases(path, std::vector<CaseOutput>{failed}).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace bitshard
