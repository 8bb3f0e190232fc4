#include "tests/kernels/cuda/emu/mutant_switch.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard::mutants {
namespace {

std::string Setting() {
  const char* const setting = std::getenv("BITSHARD_MUTANT");
  return setting == nullptr ? "" : setting;
}

// By number: whether the running test came by it.
std::vector<char>& Seen() {
  static std::vector<char>* const seen = new std::vector<char>;
  return *seen;
}

// A line a test: how it ended, its name, its milliseconds of CPU, the mutants that it came by.
class Recorder : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    Seen().clear();
    started_ = std::clock();
  }
  void OnTestEnd(const testing::TestInfo& info) override {
    std::printf("\nrecord %s %s.%s %lld", info.result()->Passed() ? "passed" : "failed",
                info.test_suite_name(), info.name(),
                static_cast<long long>((std::clock() - started_) * 1000 / CLOCKS_PER_SEC));
    for (size_t number = 0; number < Seen().size(); ++number) {
      if (Seen()[number] != 0) std::printf(" %zu", number);
    }
    std::printf("\n");
  }

  std::clock_t started_ = 0;
};

}  // namespace

const bool records = Setting() == "record";
const int chosen = std::atoi(Setting().c_str());

bool Record(int number) {
  std::vector<char>& seen = Seen();
  const size_t index = static_cast<size_t>(number);
  if (index >= seen.size()) seen.resize(2 * index + 1);
  seen[index] = 1;
  return false;
}

namespace {

[[maybe_unused]] const bool kListens = [] {
  if (records) testing::UnitTest::GetInstance()->listeners().Append(new Recorder);
  return records;
}();

}  // namespace
}  // namespace bitshard::mutants
