// Runs a parsed template: one object a rendering, one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coordinator/text/jinja_ast.h"
#include "coordinator/text/jinja_value.h"
#include "coordinator/text/jinja_writer.h"

namespace bitshard {

// What every template can call.
const std::vector<std::pair<std::string_view, JinjaFunction>>& JinjaFunctions();

class JinjaInterpreter {
 public:
  // `heap` holds all values, those of `variables` too, and must outlive this object. `now`: what
  // strftime_now tells, in the local time zone.
  JinjaInterpreter(std::vector<std::pair<std::string, JinjaValue>> variables, absl::Time now,
                   JinjaHeap* heap);

  // What the program prints. INVALID_ARGUMENT when the program fails or calls
  // raise_exception, RESOURCE_EXHAUSTED past the limits; both name the line.
  absl::Status Run(const JinjaTemplate& program, JinjaText* out);

 private:
  enum class Flow { kOn, kBreak, kContinue };
  // A call in a call takes up to some KiB of stack.
  static constexpr int kMaxDepth = 800;

  // While it lives, assignments are to a scope of their own.
  class Scope {
   public:
    explicit Scope(JinjaInterpreter* owner)
        : owner_(*owner), outer_begin_(owner->scope_begin_), begin_(owner->variables_.size()) {
      owner_.scope_begin_ = begin_;
      if (owner_.scopes_++ == 0) owner_.root_end_ = begin_;
    }
    ~Scope() {
      Clear();
      --owner_.scopes_;
      owner_.scope_begin_ = outer_begin_;
    }
    void Clear() {
      owner_.variables_.erase(owner_.variables_.begin() + begin_, owner_.variables_.end());
    }

   private:
    JinjaInterpreter& owner_;
    const size_t outer_begin_;
    const size_t begin_;
  };

  // Counts calls in each other, so that hostile programs cannot use up the stack.
  class Depth {
   public:
    explicit Depth(JinjaInterpreter* owner) : owner_(*owner) { ++owner_.depth_; }
    ~Depth() { --owner_.depth_; }
    absl::Status Check() const {
      if (owner_.depth_ <= kMaxDepth) return absl::OkStatus();
      return absl::ResourceExhaustedError("calls are nested too deeply; an endless recursion?");
    }

   private:
    JinjaInterpreter& owner_;
  };

  // What a macro's body sees besides its own variables and those of the template.
  struct Frame {
    size_t outer_begin = 0;
    size_t outer_end = 0;
    size_t begin = 0;  // of its own, which reach to the end of variables_
  };

  absl::StatusOr<Flow> RunBody(const JinjaBody& body, JinjaWriter* out);
  // In a scope of its own.
  absl::StatusOr<Flow> RunInner(const JinjaBody& body, JinjaWriter* out);
  absl::StatusOr<Flow> RunStatement(const JinjaStatement& statement, JinjaWriter* out);
  absl::StatusOr<Flow> RunFor(const JinjaStatement& statement, JinjaWriter* out);
  absl::StatusOr<Flow> RunWith(const JinjaStatement& statement, JinjaWriter* out);
  absl::Status RunSet(const JinjaStatement& statement);
  absl::Status RunCallBlock(const JinjaStatement& statement, JinjaWriter* out);
  absl::Status PrintValue(const JinjaValue& value, JinjaWriter* out);
  // `text` through the filters of a block.
  absl::StatusOr<JinjaValue> Filtered(const JinjaExpr& filters, JinjaValue text);
  absl::StatusOr<JinjaValue> CallMacro(const JinjaMacro& macro, const JinjaArguments& arguments,
                                       const JinjaMacro* caller);

  absl::StatusOr<JinjaValue> Eval(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalCompare(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalAttribute(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalSlice(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> EvalCall(const JinjaExpr& expr);
  absl::StatusOr<JinjaValue> CallFunction(JinjaFunction function, const JinjaArguments& arguments);
  absl::StatusOr<JinjaValue> StrftimeNow(const JinjaArguments& arguments);
  absl::StatusOr<JinjaArguments> EvalArguments(const JinjaExpr::Arguments& arguments);
  absl::StatusOr<std::vector<JinjaValue>> EvalAll(const std::vector<JinjaExprPtr>& exprs);

  // Variables: the innermost scope is the last; loops and blocks open scopes, ifs do not. Names
  // that are assigned to outlive this object.
  JinjaValue Lookup(std::string_view name) const;
  void Assign(std::string_view name, JinjaValue value);
  absl::Status AssignTargets(const std::vector<std::string>& targets, const JinjaValue& value);

  JinjaHeap* heap_;
  const absl::Time now_;
  const std::vector<std::pair<std::string, JinjaValue>> given_;
  // Names are the program's and those of given_.
  std::vector<std::pair<std::string_view, JinjaValue>> variables_;
  size_t scope_begin_ = 0;  // of the innermost scope in variables_
  int scopes_ = 0;          // open ones
  size_t root_end_ = 0;     // of the template's own variables, while scopes are open
  Frame frame_;
  int depth_ = 0;  // of calls of Eval and RunBody in each other
};

}  // namespace bitshard
