// A parsed template: statements over expressions. Constant after parsing, shared by all renderings.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/text/jinja_filters.h"
#include "coordinator/text/jinja_methods.h"
#include "coordinator/text/jinja_tests.h"
#include "coordinator/text/jinja_value.h"

namespace bitshard {

struct JinjaExpr;
using JinjaExprPtr = std::unique_ptr<const JinjaExpr>;

enum class JinjaOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kConcat };
enum class JinjaCompare { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct JinjaExpr {
  enum class Kind {
    kLiteral,    // literal
    kName,       // name
    kList,       // operands
    kTuple,      // operands
    kDict,       // operands: key, value, key, value ...
    kNot,        // operands[0]
    kNegate,     // operands[0]
    kAnd,        // operands[0], [1]
    kOr,         // operands[0], [1]
    kBinary,     // op, operands[0], [1]
    kCompare,    // operands[0] compares[0] operands[1] compares[1] operands[2] ...
    kInlineIf,   // operands[0] if operands[1] else operands[2]; the last may be null
    kAttribute,  // operands[0].name
    kItem,       // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]]; the last three may be null
    kCall,       // operands[0](arguments)
    kMethod,     // operands[0].name(arguments)
    kFilter,     // operands[0] | name(arguments)
    kTest,       // operands[0] is name(arguments)
  };
  struct Arguments {
    std::vector<JinjaExprPtr> positional;
    std::vector<std::pair<std::string, JinjaExprPtr>> keywords;
  };

  Kind kind;
  int line;
  int depth = 1;  // of the tree below, this node included
  JinjaValue literal;
  std::string name;
  JinjaOp op = JinjaOp::kAdd;
  std::vector<JinjaCompare> compares;
  std::vector<JinjaExprPtr> operands;
  Arguments arguments;
  const JinjaFilter* filter = nullptr;
  JinjaTestFn test = nullptr;
  JinjaMethodFn method = nullptr;
};

struct JinjaStatement;
using JinjaBody = std::vector<JinjaStatement>;

struct JinjaStatement {
  enum class Kind {
    kText,      // text
    kPrint,     // value
    kIf,        // conditions[i] guards bodies[i]; one more body: the else
    kFor,       // targets in value, filter; bodies[0], bodies[1]: the else
    kSet,       // targets = value; targets[0].name when `attribute` is set
    kSetBlock,  // targets[0] = what bodies[0] prints, through `value` when there is one
    kBlock,     // bodies[0], as it is ({% generation %})
    kWith,      // bodies[0] with targets[i] = conditions[i]
    kFilter,    // prints `value`, in which kJinjaBlockText is what bodies[0] prints
    kMacro,     // text(targets): bodies[0]; defaults
    kCall,      // value(...) with caller(targets): bodies[0]; defaults
    kBreak,
    kContinue,
  };

  Kind kind;
  int line;
  std::string text;
  JinjaExprPtr value;
  JinjaExprPtr filter;
  std::vector<JinjaExprPtr> conditions;
  std::vector<std::string> targets;
  std::vector<JinjaExprPtr> defaults;    // one a target, null when it has none
  std::optional<std::string> attribute;  // {% set targets[0].attribute = value %}
  std::vector<JinjaBody> bodies;
};

// The name, no name of a template's, of what a block printed before its filters.
inline constexpr std::string_view kJinjaBlockText = "(block)";

struct JinjaTemplate {
  JinjaBody body;
};

}  // namespace bitshard
