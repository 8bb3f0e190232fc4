// Templates from text to tree: the statements; expressions are in jinja_expression_parser.
//
// INVALID_ARGUMENT with the line for syntax errors, UNIMPLEMENTED with the name for what Jinja has
// and we do not.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

#include "coordinator/text/jinja_ast.h"

namespace bitshard {

absl::StatusOr<std::unique_ptr<const JinjaTemplate>> ParseJinja(std::string_view source);

}  // namespace bitshard
