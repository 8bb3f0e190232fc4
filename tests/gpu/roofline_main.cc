// roofline CEILINGS TABLE SECONDS [M...]: the widths and forms of weights for few tokens and many,
// attention, and what lies between, against what the file CEILINGS says that the device can do. One
// line each in the file TABLE. What is not measured after SECONDS is left out and said. M: numbers
// of tokens, else 1 4 16 64; a single one leaves out many tokens. Exit status 1 when a line is
// below its bar.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "tests/gpu/roofline.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

#ifdef BITSHARD_EMULATED_SIZES  // what the emulator gets through: its times mean nothing
constexpr std::pair<uint64_t, uint64_t> kGateUp = {256, 512}, kDown = {128, 1024}, kOut = {64, 512},
                                        kInSegments = {64, 1024};
constexpr int64_t kContexts[] = {256, 64};
constexpr int kManyTokens[] = {256};
constexpr int64_t kPrompt = 128, kRows = 16, kVocabulary = 4096;
constexpr RooflineSize kSize = {.rotate_bytes = 1 << 10, .repetitions = 1};
#else
// Rows and columns: gate and up, down, an attention projection; a down projection whose segments
// are summed over ranks.
constexpr std::pair<uint64_t, uint64_t> kGateUp = {28672, 4096}, kDown = {8192, 14336},
                                        kInSegments = {4096, 14336}, kOut = {4096, 4096};
constexpr int64_t kContexts[] = {16384, 1024};
constexpr int kManyTokens[] = {256, 1024, 2048};
constexpr int64_t kPrompt = 2048, kRows = 2048, kVocabulary = 128256;
constexpr RooflineSize kSize = kRooflineSize;
#endif

PackedSpec Int(const std::pair<uint64_t, uint64_t>& shape, const SpecForm& form) {
  return IntSpec(shape.first, shape.second, form);
}
PackedSpec Bf16(const std::pair<uint64_t, uint64_t>& shape) {
  return {.rows = shape.first, .cols = shape.second, .type = PackedSpec::Type::kBf16};
}

// Of one shape.
std::vector<PackedSpec> EveryForm(const std::pair<uint64_t, uint64_t>& shape) {
  std::vector<PackedSpec> specs;
  for (const int bits : {4, 8, 5, 6, 3, 2, 7}) specs.push_back(Int(shape, {bits, 128}));
  specs.push_back(Bf16(shape));
  specs.push_back(Q4Spec(shape.first, shape.second));            // minima, as q4_1
  specs.push_back(Int(shape, {4, 64, ScaleKind::kNested}));      // NF4's scales
  specs.push_back(Int(shape, {4, 32, ScaleKind::kSuperU8Min}));  // q4_k
  specs.push_back(Int(shape, {6, 16, ScaleKind::kSuperS8}));     // q6_k
  specs.push_back(Int(shape, {4, 16, ScaleKind::kE4m3}));
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
    // What matters most comes first.
    for (const PackedSpec& spec : EveryForm(kGateUp)) RETURN_IF_ERROR(Linear({.spec = spec}, ms));
    RETURN_IF_ERROR(Linear({.spec = Int(kInSegments, {4, 128}), .segment_cols = 64}, ms));
    RETURN_IF_ERROR(Decode(ms));
    const std::vector<int> many(std::begin(kManyTokens), std::end(kManyTokens));
    if (ms.size() > 1) {
      for (const int bits : {4, 8, 3}) {
        for (const bool deterministic : {true, false}) {
          RETURN_IF_ERROR(
              Linear({.spec = Int(kGateUp, {bits, 128}), .deterministic = deterministic}, many));
        }
      }
      for (const bool deterministic : {true, false}) RETURN_IF_ERROR(Prefill(deterministic));
    }
    RETURN_IF_ERROR(Rows(ms.size() > 1));
    for (const auto& shape : {kDown, kOut}) {
      for (const PackedSpec& spec : {Int(shape, {4, 128}), Int(shape, {8, 128}), Bf16(shape)})
        RETURN_IF_ERROR(Linear({.spec = spec}, ms));
    }
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

  absl::Status Keep(const absl::StatusOr<RooflineLine>& line) {
    RETURN_IF_ERROR(line.status());
    lines_.push_back(*line);
    table_ << RooflineText(*line) << std::endl;  // what was measured stays
    return absl::OkStatus();
  }

  absl::Status Linear(const LinearRoofline& of, const std::vector<int>& ms) {
    if (!InTime()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<RooflineLine> lines,
                     MeasureLinear(device_, of, ms, ceilings_, kSize));
    for (const RooflineLine& line : lines) RETURN_IF_ERROR(Keep(line));
    return absl::OkStatus();
  }

  absl::Status Attention(const AttentionRoofline& of) {
    if (!InTime()) return absl::OkStatus();
    return Keep(MeasureAttention(device_, of, ceilings_, kSize));
  }
  absl::Status Decode(const std::vector<int>& ms) {
    for (const KvType type : {KvType::kBf16, KvType::kFp8E4m3, KvType::kInt8}) {
      for (const int sequences : ms) {
        if (sequences > 16) continue;
        for (const int64_t context : kContexts) {
          RETURN_IF_ERROR(Attention({.layout = {.type = type, .kv_heads = 8, .head_dim = 128},
                                     .q_heads = kQHeads,
                                     .sequences = sequences,
                                     .context = context}));
        }
      }
    }
    return absl::OkStatus();
  }
  absl::Status Prefill(bool deterministic) {
    return Attention({.layout = kKv,
                      .q_heads = kQHeads,
                      .context = kPrompt,
                      .tokens = kPrompt,
                      .deterministic = deterministic});
  }

  // A token's, and a prompt's.
  absl::Status Rows(bool also_many) {
    if (!InTime()) return absl::OkStatus();
    RETURN_IF_ERROR(Keep(MeasureSumNorm(device_, 1, 4096, ceilings_, kSize)));
    RETURN_IF_ERROR(Keep(MeasureScan(device_, 1, kVocabulary, ceilings_, kSize)));
    RETURN_IF_ERROR(Keep(MeasureAppend(device_, kKv, kQHeads, 1, ceilings_, kSize)));
    if (!also_many) return absl::OkStatus();
    RETURN_IF_ERROR(Keep(MeasureSumNorm(device_, kRows, 4096, ceilings_, kSize)));
    RETURN_IF_ERROR(Keep(MeasureScan(device_, 32, kVocabulary, ceilings_, kSize)));
    return Keep(MeasureAppend(device_, kKv, kQHeads, kRows, ceilings_, kSize));
  }

  static constexpr KvLayout kKv = {.type = KvType::kBf16, .kv_heads = 8, .head_dim = 128};
  static constexpr int kQHeads = 32;
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
