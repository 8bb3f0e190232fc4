#include "kernels/formats/format.h"

#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using FormatsByName = std::map<std::string, std::unique_ptr<const WeightFormat>, std::less<>>;

// Filled by static initialisers of other files, hence made at first use.
struct Registry {
  FormatsByName formats;
  std::vector<FormatFamily> families;
  absl::Mutex mu;
  FormatsByName made ABSL_GUARDED_BY(mu);  // by families, at their first mention
};

Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

}  // namespace

std::optional<uint64_t> BlockFormat::RowBytes(uint64_t cols) const {
  if (cols % block_elements_ != 0) return std::nullopt;
  return CheckedMul(cols / block_elements_, block_bytes_);
}

ColumnSlice BlockFormat::ReadColumns(uint64_t begin, uint64_t end) const {
  CHECK_LE(begin, end);
  if (begin == end) return {.begin = begin, .end = end, .read_begin = begin, .read_end = begin};
  return {.begin = begin,
          .end = end,
          .read_begin = begin / block_elements_ * block_elements_,
          .read_end = RoundUp(end, block_elements_)};
}

absl::StatusOr<PartShape> BlockFormat::ShapeOfPart(size_t part, uint64_t rows,
                                                   uint64_t cols) const {
  CHECK_EQ(part, 0u);
  const std::optional<uint64_t> row_bytes = RowBytes(cols);
  if (!row_bytes || !CheckedMul(*row_bytes, rows)) {
    return absl::InvalidArgumentError(absl::StrCat("[", rows, ", ", cols,
                                                   "] are no whole blocks of ", block_elements_,
                                                   " values in format ", name(), ", or too many"));
  }
  return PartShape{.rows = rows, .row_bytes = *row_bytes};
}

PartSlice BlockFormat::SliceOfPart(size_t part, uint64_t cols, const MatrixSlice& slice) const {
  CHECK(part == 0 && slice.col_end <= cols);
  if (slice.empty()) return {.row_begin = slice.row_begin, .row_end = slice.row_begin};
  const ColumnSlice columns = ReadColumns(slice.col_begin, slice.col_end);
  return {.row_begin = slice.row_begin,
          .row_end = slice.row_end,
          .byte_begin = *RowBytes(columns.read_begin),
          .byte_end = *RowBytes(columns.read_end)};
}

void BlockFormat::Decode(PartBytes parts, uint64_t rows, uint64_t cols, float* out) const {
  CHECK_EQ(parts.size(), 1u);
  Decode(parts[0], rows, cols, out);
}

PackedSpec BlockFormat::Canonical(uint64_t cols, const MatrixSlice& slice) const {
  CHECK_LE(slice.col_end, cols);
  return Canonical(slice.rows(), ReadColumns(slice.col_begin, slice.col_end));
}

absl::Status BlockFormat::ToCanonical(PartBytes parts, uint64_t cols, const MatrixSlice& slice,
                                      uint64_t first_row, PackedMatrixBuilder& builder) const {
  CHECK(parts.size() == 1 && slice.col_end <= cols);
  return ToCanonical(parts[0], first_row, slice.rows(), ReadColumns(slice.col_begin, slice.col_end),
                     builder);
}

absl::StatusOr<uint64_t> StoredBytes(const WeightFormat& format, uint64_t rows, uint64_t cols) {
  uint64_t total = 0;
  for (size_t part = 0; part < format.part_count(); ++part) {
    ASSIGN_OR_RETURN(const PartShape shape, format.ShapeOfPart(part, rows, cols));
    const auto bytes = CheckedMul(shape.rows, shape.row_bytes);
    const auto sum = bytes ? CheckedAdd(total, *bytes) : std::nullopt;
    if (!sum) return absl::InvalidArgumentError(absl::StrCat("too large for ", format.name()));
    total = *sum;
  }
  return total;
}

const WeightFormat* FindFormat(std::string_view name) {
  Registry& registry = TheRegistry();
  const auto found = registry.formats.find(name);
  if (found != registry.formats.end()) return found->second.get();
  for (const FormatFamily& family : registry.families) {
    if (name.substr(0, family.prefix.size()) != family.prefix) continue;
    absl::MutexLock lock(&registry.mu);
    const auto made = registry.made.find(name);
    if (made != registry.made.end()) return made->second.get();
    std::unique_ptr<const WeightFormat> format = family.make(name);
    if (format == nullptr) continue;
    CHECK_EQ(format->name(), name);
    return registry.made.emplace(std::string(name), std::move(format)).first->second.get();
  }
  return nullptr;
}

absl::StatusOr<const WeightFormat*> GetFormat(std::string_view name) {
  if (const WeightFormat* format = FindFormat(name)) return format;
  std::vector<std::string> known;
  for (const WeightFormat* format : AllFormats()) known.push_back(format->name());
  for (const FormatFamily& family : TheRegistry().families) known.push_back(family.name_shape);
  return absl::UnimplementedError(absl::StrCat("weight format '", std::string(name),
                                               "' is not supported; supported are ",
                                               absl::StrJoin(known, ", ")));
}

const BlockFormat* FindBlockFormat(std::string_view name) {
  return dynamic_cast<const BlockFormat*>(FindFormat(name));
}

std::vector<const WeightFormat*> AllFormats() {
  std::vector<const WeightFormat*> all;
  for (const auto& [name, format] : TheRegistry().formats) all.push_back(format.get());
  return all;
}

RegisterFormat::RegisterFormat(const WeightFormat* format) {
  CHECK(TheRegistry().formats.try_emplace(format->name(), format).second)
      << format->name() << " is registered twice";
}

RegisterFormatFamily::RegisterFormatFamily(FormatFamily family) {
  TheRegistry().families.push_back(std::move(family));
}

}  // namespace bitshard
