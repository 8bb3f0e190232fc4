// Types of the KV cache by name: what worker.proto calls CACHE_TYPE_FP8_E4M3 is "fp8_e4m3" for
// --kv-cache-dtype and for KvTypeName (kernels/tensor/kv_layout.h).
#pragma once

#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

#include "proto/worker.pb.h"

namespace bitshard {

inline constexpr absl::string_view kCacheTypePrefix = "CACHE_TYPE_";

// "" for a number without a name.
inline std::string CacheTypeName(internal::NumericsOptions::CacheType type) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(internal::NumericsOptions::CacheType_Name(type), kCacheTypePrefix));
}

// None: worker.proto has no such type.
inline std::optional<internal::NumericsOptions::CacheType> CacheTypeByName(absl::string_view name) {
  internal::NumericsOptions::CacheType type;
  if (!internal::NumericsOptions::CacheType_Parse(
          absl::StrCat(kCacheTypePrefix, absl::AsciiStrToUpper(name)), &type))
    return std::nullopt;
  return type;
}

}  // namespace bitshard
