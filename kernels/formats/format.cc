#include "kernels/formats/format.h"

#include <functional>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"

namespace bitshard {
namespace {

using Registry = std::map<std::string, std::unique_ptr<const WeightFormat>, std::less<>>;

// Filled by static initialisers of other files, hence made at first use.
Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

}  // namespace

std::optional<uint64_t> WeightFormat::RowBytes(uint64_t cols) const {
  if (cols % block_elements_ != 0) return std::nullopt;
  return CheckedMul(cols / block_elements_, block_bytes_);
}

ColumnSlice WeightFormat::ReadColumns(uint64_t begin, uint64_t end) const {
  CHECK_LE(begin, end);
  if (begin == end) return {.begin = begin, .end = end, .read_begin = begin, .read_end = begin};
  return {.begin = begin,
          .end = end,
          .read_begin = begin / block_elements_ * block_elements_,
          .read_end = RoundUp(end, block_elements_)};
}

const WeightFormat* FindFormat(std::string_view name) {
  const auto found = TheRegistry().find(name);
  return found == TheRegistry().end() ? nullptr : found->second.get();
}

absl::StatusOr<const WeightFormat*> GetFormat(std::string_view name) {
  if (const WeightFormat* format = FindFormat(name)) return format;
  const auto append_name = [](std::string* out, const WeightFormat* format) {
    out->append(format->name());
  };
  return absl::UnimplementedError(absl::StrCat("weight format '", std::string(name),
                                               "' is not supported; supported are ",
                                               absl::StrJoin(AllFormats(), ", ", append_name)));
}

std::vector<const WeightFormat*> AllFormats() {
  std::vector<const WeightFormat*> all;
  for (const auto& [name, format] : TheRegistry()) all.push_back(format.get());
  return all;
}

RegisterFormat::RegisterFormat(const WeightFormat* format) {
  CHECK(TheRegistry().try_emplace(format->name(), format).second)
      << format->name() << " is registered twice";
}

}  // namespace bitshard
