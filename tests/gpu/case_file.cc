#include "tests/gpu/case_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bitshard {
namespace {

constexpr char kMagic[] = "bitshard kernel cases 1\n";

size_t ElementBytes(CaseOutput::Kind kind) {
  return kind == CaseOutput::Kind::kBytes ? 1 : kind == CaseOutput::Kind::kFloats ? 4 : 8;
}

double NumberAt(const CaseOutput& output, size_t i) {
  if (output.kind == CaseOutput::Kind::kFloats) {
    float value;
    std::memcpy(&value, output.bytes.data() + i * sizeof(value), sizeof(value));
    return value;
  }
  int64_t sum;
  std::memcpy(&sum, output.bytes.data() + i * sizeof(sum), sizeof(sum));
  return static_cast<double>(sum) * 0x1p-32;
}

void CompareNumbers(const CaseOutput& ours, const CaseOutput& stored, CaseDifference* d) {
  double error = 0, norm = 0, largest = 0;
  for (size_t i = 0; i < d->values; ++i) {
    const double a = NumberAt(ours, i), b = NumberAt(stored, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    const double apart = a == b ? 0 : std::abs(a - b);  // equal infinities too
    error += std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart * apart;
    largest =
        std::isnan(apart) ? std::numeric_limits<double>::infinity() : std::max(largest, apart);
    if (std::isfinite(b)) norm += b * b;
  }
  d->norm_error = error == 0 ? 0 : std::sqrt(error / norm);
  d->largest = largest == 0 ? 0 : largest / std::sqrt(norm / static_cast<double>(d->values));
  if (!(d->norm_error <= kGrossError))
    d->failure = absl::StrFormat("the results are %.3g apart", d->norm_error);
}

CaseDifference Compare(const CaseOutput& ours, const CaseOutput* stored) {
  CaseDifference d;
  d.launch = ours.launch;
  d.reference_error = ours.reference_error;
  d.reference_bound = ours.reference_bound;
  if (!ours.error.empty() || stored == nullptr) {
    d.failure = stored == nullptr ? "nothing is stored of it" : ours.error;
    return d;
  }
  if (stored->kind != ours.kind || stored->bytes.size() != ours.bytes.size()) {
    d.failure =
        absl::StrCat(ours.bytes.size(), " bytes for ", stored->bytes.size(), " stored ones");
    return d;
  }
  const size_t each = ElementBytes(ours.kind);
  d.values = ours.bytes.size() / each;
  for (size_t i = 0; i < d.values; ++i) {
    const bool same =
        std::memcmp(ours.bytes.data() + i * each, stored->bytes.data() + i * each, each) == 0;
    d.equal += same;
    if (!same && ours.kind == CaseOutput::Kind::kBytes && d.failure.empty()) {
      d.failure = absl::StrFormat("byte %d is %#04x for %#04x", i, ours.bytes[i], stored->bytes[i]);
    }
  }
  if (ours.kind != CaseOutput::Kind::kBytes) CompareNumbers(ours, *stored, &d);
  if (d.failure.empty() && !(d.reference_error <= kGrossError))
    d.failure = absl::StrFormat("%.3g from the reference", d.reference_error);
  return d;
}

}  // namespace

absl::Status WriteCases(const std::string& path, absl::Span<const CaseOutput> outputs) {
  std::ofstream file(path, std::ios::binary);
  file << kMagic;
  for (const CaseOutput& output : outputs) {
    if (!output.error.empty())
      return absl::InternalError(absl::StrCat(output.launch, ": ", output.error));
    file << static_cast<int>(output.kind) << ' ' << output.bytes.size() << ' ' << output.launch
         << '\n';
    file.write(reinterpret_cast<const char*>(output.bytes.data()),
               static_cast<std::streamsize>(output.bytes.size()));
  }
  if (!file.flush()) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CaseOutput>> ReadCases(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const auto bad = [&path](const std::string& what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what, "; it belongs to another bundle"));
  };
  std::string magic(sizeof(kMagic) - 1, '\0');
  if (!file.read(magic.data(), static_cast<std::streamsize>(magic.size())) || magic != kMagic)
    return bad("no kernel cases");
  std::vector<CaseOutput> outputs;
  int kind;
  size_t bytes;
  constexpr size_t kMost = size_t{1} << 30;
  while (file.peek() != std::ifstream::traits_type::eof()) {
    CaseOutput output;
    if (!(file >> kind >> bytes)) return bad("something that is no case");
    if (kind < 0 || kind > static_cast<int>(CaseOutput::Kind::kSums) || bytes > kMost)
      return bad("a case that makes no sense");
    output.kind = static_cast<CaseOutput::Kind>(kind);
    output.bytes.resize(bytes);
    file.ignore(1);
    std::getline(file, output.launch);
    file.read(reinterpret_cast<char*>(output.bytes.data()), static_cast<std::streamsize>(bytes));
    if (!file) return bad("it ends within " + output.launch);
    outputs.push_back(std::move(output));
  }
  return outputs;
}

std::vector<CaseDifference> CompareCases(absl::Span<const CaseOutput> ours,
                                         absl::Span<const CaseOutput> stored) {
  std::map<std::string, const CaseOutput*> by_name;
  for (const CaseOutput& output : stored) by_name[output.launch] = &output;
  std::vector<CaseDifference> differences;
  for (const CaseOutput& output : ours) {
    const auto found = by_name.find(output.launch);
    differences.push_back(Compare(output, found == by_name.end() ? nullptr : found->second));
  }
  return differences;
}

std::string CaseHead() {
  return "launch\tvalues\tequal share\tnorm error\tlargest\treference\tbound\tfailure";
}

std::string CaseText(const CaseDifference& d) {
  const double share =
      d.values == 0 ? 0 : static_cast<double>(d.equal) / static_cast<double>(d.values);
  std::string reference = "\t";
  if (d.reference_error >= 0)
    reference = absl::StrFormat("%.3g\t%.3g", d.reference_error, d.reference_bound);
  return absl::StrFormat("%s\t%d\t%.4f\t%.3g\t%.3g\t%s\t%s", d.launch, d.values, share,
                         d.norm_error, d.largest, reference, d.failure);
}

}  // namespace bitshard
