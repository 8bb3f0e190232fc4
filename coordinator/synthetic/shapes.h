// Shapes of public models by name, so that a benchmark needs no file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bitshard {

// The config.json of the model of this name: its sizes, without quantization. Nullopt for others.
std::optional<std::string> ConfigOfShape(std::string_view name);

// In the order of size.
std::vector<std::string> ShapeNames();

}  // namespace bitshard
