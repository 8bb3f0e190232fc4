#include "tests/gpu/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "kernels/cuda/emu/findings.h"
#include "kernels/cuda/emu/options.h"
#include "tests/gpu/case_file.h"
#include "tests/gpu/counter_join.h"
#include "tests/gpu/launch_log.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A kernel of the compiler's table: "kernels/cuda/linear_w4.cu", "LinearTilesKernel<IntWeights<4,
// true>, 1, 2, true>".
struct CompiledKernel {
  std::string source, name;
};

std::vector<CompiledKernel> CompiledKernels() {
  std::ifstream table("tests/bars/kernels.tsv");
  std::vector<CompiledKernel> kernels;
  std::set<std::string> seen;
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, '\t');
    if (cells.size() > 2 && seen.insert(cells[0] + cells[1]).second)
      kernels.push_back({cells[0], cells[1]});
  }
  return kernels;
}

// "Kernel", "IntWeights<4, true>", "1" of "Kernel<IntWeights<4, true>, 1>".
std::vector<std::string> PartsOf(const std::string& kernel) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char letter : kernel) {
    depth -= letter == '>';
    if ((letter == '<' && depth == 0) || (letter == ',' && depth == 1)) {
      parts.emplace_back();
    } else if (letter != ' ' && !(letter == '>' && depth == 0)) {
      parts.back() += letter;
    }
    depth += letter == '<';
  }
  return parts;
}

// Where a launch is written, as far as the case's name says it; kernels of headers are compiled for
// several files.
std::string SourceOf(const std::string& launch) {
  const std::string word = launch.substr(0, launch.find(' '));
  if (word == "silu" || word == "gelu") return "kernels/cuda/gated.cu";
  if (word == "prepare") return "kernels/cuda/prepare.cu";
  if (word == "cuda/linear_f16" || word == "cuda/linear_bf16") return "kernels/cuda/linear_half.cu";
  if (absl::EndsWith(word, "_a8"))
    return absl::StrCat("kernels/cuda/linear_a8_", word.substr(word.find('w'), 2), ".cu");
  return absl::StrCat("kernels/", word, ".cu");
}

struct CaseLaunch {
  std::string launch, kernel;
};

// A launch names parameters of its template, or the values themselves.
bool IsValue(const std::string& part) {
  int value;
  return part == "true" || part == "false" || absl::SimpleAtoi(part, &value);
}
bool IsLaunchOf(const CompiledKernel& kernel, const CaseLaunch& launched, bool in_one_source) {
  const std::vector<std::string> is = PartsOf(kernel.name), named = PartsOf(launched.kernel);
  if (is[0] != named[0] || is.size() != named.size()) return false;
  for (size_t i = 1; i < is.size(); ++i) {
    if (IsValue(named[i]) && named[i] != is[i]) return false;
  }
  return in_one_source || SourceOf(launched.launch) == kernel.source;
}

std::vector<std::string> NeverLaunched(const std::vector<CompiledKernel>& kernels,
                                       const std::vector<CaseLaunch>& launches) {
  std::map<std::string, std::set<std::string>> sources;
  for (const CompiledKernel& kernel : kernels)
    sources[PartsOf(kernel.name)[0]].insert(kernel.source);
  std::vector<std::string> never;
  for (const CompiledKernel& kernel : kernels) {
    const bool in_one_source = sources[PartsOf(kernel.name)[0]].size() == 1;
    if (std::none_of(launches.begin(), launches.end(), [&](const CaseLaunch& launched) {
          return IsLaunchOf(kernel, launched, in_one_source);
        }))
      never.push_back(kernel.source + " " + kernel.name);
  }
  return never;
}

TEST(KernelCases, AKernelWithoutACaseIsSeen) {
  const std::vector<CompiledKernel> kernels = {
      {"kernels/cuda/linear_w4.cu", "TilesKernel<IntWeights<4, true>, 1, 2, true>"},
      {"kernels/cuda/linear_w5.cu", "TilesKernel<IntWeights<5, true>, 1, 2, true>"},
      {"kernels/cuda/norm.cu", "NormKernel"},
      {"kernels/cuda/norm.cu", "SumNormKernel"}};
  const CaseLaunch norm = {"norm 3x4", "NormKernel"}, sum = {"sum and norm 3x4", "SumNormKernel"};
  const std::string tiles = "TilesKernel<Weights, kBlocks, 2, true>";
  EXPECT_THAT(
      NeverLaunched(kernels,
                    {norm, sum, {"cuda/linear_w4 int4", tiles}, {"cuda/linear_w5 x", tiles}}),
      IsEmpty());
  EXPECT_THAT(NeverLaunched(kernels, {norm, {"cuda/linear_w4 int4", tiles}}),
              ElementsAre("kernels/cuda/linear_w5.cu TilesKernel<IntWeights<5, true>, 1, 2, true>",
                          "kernels/cuda/norm.cu SumNormKernel"));
  // One row tile a warp is another kernel than two.
  EXPECT_EQ(NeverLaunched({kernels[0]},
                          {{"cuda/linear_w4 int4", "TilesKernel<Weights, kBlocks, 1, true>"}})
                .size(),
            1u);
}

// In the check build too: each access is right, all that is kept was written.
TEST(KernelCases, EveryKernelIsLaunchedOnceAndCounted) {
  std::vector<LaunchCounters> counted;
  std::vector<CaseLaunch> launched;
  std::string last;
  StartLaunchLog();
  CaseOptions options;
  options.with_reference = true;
  options.hooks.before = [&](const std::string& launch) {
    last = launch;
    emu::ResetCounters();
  };
  options.hooks.after = [&](const std::string& launch) {
    EXPECT_EQ(launch, last);
    counted.push_back(CountersOf(launch, emu::GetCounters()));
    for (const LoggedLaunch& logged : TakeLaunchLog()) launched.push_back({launch, logged.kernel});
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
    EXPECT_GT(counted[i].launches, 0u) << output.launch;
    EXPECT_GT(counted[i].blocks, 0u) << output.launch;
    if (emu::ChecksAccesses()) {
      EXPECT_GT(counted[i].write_sectors, 0u) << output.launch;
    }
  }
  EXPECT_GT(with_reference, 10);
  const std::vector<CompiledKernel> kernels = CompiledKernels();
  EXPECT_GT(kernels.size(), 100u);
  EXPECT_THAT(NeverLaunched(kernels, launched), IsEmpty());

  const absl::StatusOr<std::vector<LaunchCounters>> back =
      ParseCountersTable(CountersTable(counted));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(CountersTable(*back), CountersTable(counted));
}

TEST(KernelCases, ResultsComeBackFromTheirFileAndAreEqual) {
  if (emu::ChecksAccesses()) GTEST_SKIP() << "the plain build does it";
  const std::vector<CaseOutput> outputs = RunCases(CaseSet::kCalibration, {});
  EXPECT_EQ(outputs.size(), 9u);
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
