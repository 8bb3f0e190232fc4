// Whether a JSON Schema asks only for what the grammar made of it can keep.
//
// xgrammar leaves out keywords that it does not know, and looks at one of several that stand side
// by side; the output would then be called fitting and would not be. Such schemas are refused with
// the keyword and its place.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bitshard {

// What is wrong with the schema, for people: no JSON, nested too deeply, or a
// keyword that cannot be kept. nullopt when nothing is.
std::optional<std::string> WrongInSchema(std::string_view text);

}  // namespace bitshard
