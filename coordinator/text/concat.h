// Concat("id ", 7, " of ", view): absl::StrCat for std::string_view, which Debian's Abseil does not
// know.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace bitshard {
namespace concat_internal {

inline void Append(std::string* out, std::string_view text) { out->append(text); }

template <typename Int, typename = std::enable_if_t<std::is_integral_v<Int>>>
void Append(std::string* out, Int value) {
  static_assert(!std::is_same_v<Int, char> && !std::is_same_v<Int, bool>);
  out->append(std::to_string(value));
}

}  // namespace concat_internal

template <typename... Args>
std::string Concat(const Args&... args) {
  std::string out;
  (concat_internal::Append(&out, args), ...);
  return out;
}

}  // namespace bitshard
