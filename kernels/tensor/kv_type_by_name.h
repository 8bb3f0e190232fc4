// The type of a KV cache by the name that KvTypeName gives it.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/tensor/kv_layout.h"

namespace bitshard {

// None: no type is spelt so.
inline std::optional<KvType> KvTypeByName(std::string_view name) {
  for (const KvType type : kAllKvTypes) {
    if (name == KvTypeName(type)) return type;
  }
  return std::nullopt;
}

}  // namespace bitshard
