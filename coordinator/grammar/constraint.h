// What the caller wants an output to look like, as it came, and the bounds of what is looked at.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace bitshard {

struct Constraint {
  enum class Kind {
    kJsonSchema,  // JSON text that fits the schema
    kRegex,       // text that matches as a whole
    kGrammar,     // text of the grammar's rule "root"
    kChoice,      // one of `options`
  };
  Kind kind = Kind::kChoice;
  std::string text;                  // UTF-8; empty with kChoice
  std::vector<std::string> options;  // UTF-8; with kChoice

  // Its place in a request: "constraint.json_schema".
  absl::string_view Field() const;
  // Equal constraints have equal keys, others never.
  std::string Key() const;
};

inline constexpr size_t kMaxConstraintBytes = 64 << 10;  // of the text, or of all options
inline constexpr size_t kMaxConstraintOptions = 1024;
inline constexpr int kMaxConstraintNesting = 64;  // of parentheses

// INVALID_ARGUMENT naming the field: too large, too deep, empty, or a schema that asks for
// something that cannot be kept. What is OK here may still fail to compile.
absl::Status CheckConstraint(const Constraint& constraint);

}  // namespace bitshard
