// roofline CEILINGS TABLE SECONDS [M...]: the widths and forms of weights, and attention, against
// what the file CEILINGS says that the device can do. One line each in the file TABLE. What is not
// measured after SECONDS is left out and said. M: numbers of tokens, else 1 4 16 64. Exit status 1
// when a line is below its bar.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "tests/gpu/roofline.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

// Rows and columns: gate and up, down, an attention projection.
constexpr std::pair<uint64_t, uint64_t> kShapes[] = {{28672, 4096}, {8192, 14336}, {4096, 4096}};

std::vector<PackedSpec> Specs(uint64_t rows, uint64_t cols) {
  std::vector<PackedSpec> specs;
  for (const int bits : {4, 8, 5, 6, 3, 2, 7}) specs.push_back(IntSpec(rows, cols, {bits, 128}));
  specs.push_back({.rows = rows, .cols = cols, .type = PackedSpec::Type::kBf16});
  specs.push_back(Q4Spec(rows, cols));
  specs.push_back(IntSpec(rows, cols, {4, 32, ScaleKind::kSuperU8Min}));  // q4_k
  specs.push_back(IntSpec(rows, cols, {6, 16, ScaleKind::kSuperS8}));     // q6_k
  specs.push_back(IntSpec(rows, cols, {4, 16, ScaleKind::kE4m3}));
  return specs;
}

class Run {
 public:
  Run(Device& device, const Ceilings& ceilings, const std::string& path, double seconds)
      : device_(device), ceilings_(ceilings), table_(path), seconds_(seconds) {
    table_ << "# " << device.facts().name << ", driver " << device.facts().driver << "\n"
           << RooflineHead() << std::endl;
  }

  absl::Status All(const std::vector<int>& ms) {
    RETURN_IF_ERROR(Linear(kShapes[0], ms));
    RETURN_IF_ERROR(Attention(ms));
    RETURN_IF_ERROR(Linear(kShapes[1], ms));
    RETURN_IF_ERROR(Linear(kShapes[2], ms));
    table_.close();
    if (!table_) return absl::UnavailableError("cannot write the table");
    const RooflineVerdict verdict = JudgeRoofline(lines_);
    std::printf("%s", verdict.text.c_str());
    if (left_out_ > 0) std::printf("; %d measurements left out for want of time", left_out_);
    std::printf("\n");
    if (verdict.below > 0) return absl::FailedPreconditionError("below the bar");
    return absl::OkStatus();
  }

 private:
  bool InTime() {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
    if (taken.count() < seconds_) return true;
    ++left_out_;
    return false;
  }

  void Keep(const RooflineLine& line) {
    lines_.push_back(line);
    table_ << RooflineText(line) << std::endl;  // what was measured stays
  }

  absl::Status Linear(const std::pair<uint64_t, uint64_t>& shape, const std::vector<int>& ms) {
    for (const PackedSpec& spec : Specs(shape.first, shape.second)) {
      if (!InTime()) continue;
      ASSIGN_OR_RETURN(const std::vector<RooflineLine> lines,
                       MeasureLinear(device_, spec, ms, ceilings_, kRooflineSize));
      for (const RooflineLine& line : lines) Keep(line);
    }
    return absl::OkStatus();
  }

  absl::Status Attention(const std::vector<int>& ms) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3, KvType::kInt8}) {
      for (const int sequences : ms) {
        for (const int64_t context : {int64_t{16384}, int64_t{1024}}) {
          if (sequences > 16 || !InTime()) continue;
          ASSIGN_OR_RETURN(const RooflineLine line,
                           MeasureAttention(device_, {.type = type, .kv_heads = 8, .head_dim = 128},
                                            32, sequences, context, ceilings_, kRooflineSize));
          Keep(line);
        }
      }
    }
    return absl::OkStatus();
  }

  Device& device_;
  const Ceilings ceilings_;
  std::ofstream table_;
  const double seconds_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<RooflineLine> lines_;
  int left_out_ = 0;
};

absl::Status Main(const std::string& ceilings_path, const std::string& table, double seconds,
                  const std::vector<int>& ms) {
  ASSIGN_OR_RETURN(const Ceilings ceilings, ReadCeilings(ceilings_path));
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, OpenDevice("cuda", 0));
  return Run(*device, ceilings, table, seconds).All(ms);
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  std::vector<int> ms;
  for (int i = 4; i < argc; ++i) ms.push_back(std::atoi(argv[i]));
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0;
  bool usable = seconds > 0;
  for (const int m : ms) usable = usable && m > 0;
  if (!usable) {
    std::fprintf(stderr, "usage: %s CEILINGS TABLE SECONDS [M...]\n", argv[0]);
    return 2;
  }
  if (ms.empty()) ms = {1, 4, 16, 64};
  const absl::Status status = bitshard::Main(argv[1], argv[2], seconds, ms);
  // A missed bar is said by the last line of stdout.
  if (!status.ok() && !absl::IsFailedPrecondition(status))
    std::fprintf(stderr, "error: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
