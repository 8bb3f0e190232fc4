// linear: the matrices of a group in one launch, column-parallel into f32; or one row-parallel
// matrix into int64 sums with their poison counts behind them, without --deterministic into f32
// sums.
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/device/device_op.h"
#include "worker/ops/linear_parts.h"

namespace bitshard {
namespace {

using internal::Node;

// The activations of a group. Who makes the value prepares them, else the first group that reads
// them.
struct Input {
  DevicePrepared* prepared = nullptr;
  const float* x = nullptr;
  bool prepares = false;

  const DeviceActivations& form() const { return prepared->form; }
  absl::Status Enqueue(const DeviceStep& step) const {
    if (!prepares) return absl::OkStatus();
    return step.kernels->Prepare(x, form().cols, step.tokens, prepared->FormOf(step.tokens),
                                 *step.stream);
  }
};

absl::StatusOr<Input> BindInput(uint32_t value, int64_t segment_cols, DeviceBindContext& bind) {
  DevicePrepared* const prepared = bind.prepared().Find(value, segment_cols);
  if (prepared == nullptr) return absl::InternalError("nothing prepares its input");
  Input input;
  input.prepared = prepared;
  input.x = bind.f32(value);
  input.prepares = !std::exchange(prepared->made, true);
  if (input.prepares) prepared->clears = true;
  return input;
}

// Has the poison counts behind `sums` cleared by whoever makes the input's form: a fill of its own
// between two kernels would keep the matrix from starting early. False: somebody else must.
bool ClearsWithInput(DevicePrepared& prepared, int64_t* sums, int64_t width) {
  if (!prepared.clears || prepared.meets_sums || prepared.sums != nullptr) return false;
  if (prepared.form.half == nullptr && prepared.form.a8 == nullptr) return false;
  prepared.sums = sums;
  prepared.sums_width = width;
  return true;
}

class DeviceLinearGroup final : public DeviceOp {
 public:
  struct Member {
    DeviceLinear linear;
    KernelChoice choice;
    int node = 0;  // in the group
  };

  DeviceLinearGroup(const std::vector<Member>& members, const Input& input) : input_(input) {
    for (const Member& member : members) {
      linears_.push_back(member.linear);
      choices_.emplace_back(member.node, member.choice);
    }
  }

  absl::Status Enqueue(const DeviceStep& step) override {
    if (linears_.empty()) return absl::OkStatus();  // no rows here
    RETURN_IF_ERROR(input_.Enqueue(step));
    return step.kernels->Linear(linears_, input_.form(), step.tokens, *step.stream);
  }

  std::vector<KernelChoice> ChoicesOf(int member) const override {
    std::vector<KernelChoice> choices;
    for (const auto& [node, choice] : choices_) {
      if (node == member) choices.push_back(choice);
    }
    return choices;
  }

 private:
  const Input input_;
  std::vector<DeviceLinear> linears_;
  std::vector<std::pair<int, KernelChoice>> choices_;
};

class DeviceRowParallel final : public DeviceOp {
 public:
  // Without a matrix: a rank that owns no columns adds nothing. `clears`: its poison counts.
  DeviceRowParallel(const DeviceLinear& linear, KernelChoice choice, const Input& input,
                    int64_t rows, bool clears)
      : linear_(linear), choice_(std::move(choice)), input_(input), rows_(rows), clears_(clears) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    DeviceLinear linear = linear_;
    if (linear.w == nullptr) return FillZeros(step);
    if (linear.sums != nullptr) {
      linear.poison = linear.sums + step.tokens * rows_;
      const size_t bytes = static_cast<size_t>(step.tokens) * sizeof(int64_t);
      if (clears_) RETURN_IF_ERROR(step.device->Fill(linear.poison, 0, bytes, *step.stream));
    }
    RETURN_IF_ERROR(input_.Enqueue(step));
    return step.kernels->Linear(absl::MakeConstSpan(&linear, 1), input_.form(), step.tokens,
                                *step.stream);
  }

  std::vector<KernelChoice> ChoicesOf(int member) const override {
    if (linear_.w == nullptr || member != 0) return {};
    return {choice_};
  }

 private:
  absl::Status FillZeros(const DeviceStep& step) const {
    const size_t sums = static_cast<size_t>(step.tokens * rows_);
    if (linear_.sums == nullptr)
      return step.device->Fill(linear_.y, 0, sums * sizeof(float), *step.stream);
    const size_t poison = static_cast<size_t>(step.tokens);
    return step.device->Fill(linear_.sums, 0, (sums + poison) * sizeof(int64_t), *step.stream);
  }

  const DeviceLinear linear_;
  const KernelChoice choice_;
  const Input input_;
  const int64_t rows_;
  const bool clears_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> BindRowParallel(const Node& node,
                                                          DeviceBindContext& bind) {
  const internal::Linear& spec = node.linear();
  int64_t rows = 0, cols = 0;
  RETURN_IF_ERROR(CheckLinear(node, bind, &rows, &cols));
  const bool floats = !bind.options().deterministic;
  const int64_t segment_cols = floats ? 0 : static_cast<int64_t>(spec.segment_cols());
  DeviceLinear linear;
  ASSIGN_OR_RETURN(linear.w, bind.Matrix(spec.weight()));
  if (floats) {
    linear.y = bind.f32(node.outputs(0));
  } else {
    linear.sums = bind.i64(node.outputs(0));
  }
  linear.stride = rows;
  linear.deterministic = !floats;
  linear.segments_total = static_cast<int64_t>(spec.segments_total());
  Input input;
  KernelChoice choice;
  bool clears = false;
  if (linear.w != nullptr) {
    ASSIGN_OR_RETURN(input, BindInput(node.inputs(0), segment_cols, bind));
    ASSIGN_OR_RETURN(choice,
                     bind.kernels().ChooseLinear(linear.w->spec, segment_cols,
                                                 bind.options().activations, linear.deterministic));
    clears = !floats && !ClearsWithInput(*input.prepared, linear.sums, rows);
  }
  return std::make_unique<DeviceRowParallel>(linear, std::move(choice), input, rows, clears);
}

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& first = bind.graph().nodes(group.first);
  if (first.linear().segment_cols() != 0) return BindRowParallel(first, bind);
  std::vector<DeviceLinearGroup::Member> members;
  for (int i = 0; i < group.count; ++i) {
    const Node& node = bind.graph().nodes(group.first + i);
    const internal::Linear& spec = node.linear();
    int64_t rows = 0, cols = 0;
    RETURN_IF_ERROR(NodeError(node, CheckLinear(node, bind, &rows, &cols)));
    DeviceLinearGroup::Member member;
    member.node = i;
    ASSIGN_OR_RETURN(member.linear.w, bind.Matrix(spec.weight()));
    if (member.linear.w == nullptr) continue;  // this rank has no rows of it
    member.linear.y = bind.f32(node.outputs(0));
    member.linear.stride = rows;
    member.linear.deterministic = bind.options().deterministic;
    if (spec.has_bias()) {
      ASSIGN_OR_RETURN(member.linear.bias, bind.Vector(spec.bias(), rows));
    }
    absl::StatusOr<KernelChoice> choice =
        bind.kernels().ChooseLinear(member.linear.w->spec, /*segment_cols=*/0,
                                    bind.options().activations, member.linear.deterministic);
    RETURN_IF_ERROR(NodeError(node, choice.status()));
    member.choice = *std::move(choice);
    members.push_back(std::move(member));
  }
  Input input;
  if (!members.empty()) {
    ASSIGN_OR_RETURN(input, BindInput(first.inputs(0), /*segment_cols=*/0, bind));
  }
  return std::make_unique<DeviceLinearGroup>(members, input);
}

const RegisterDeviceOp kRegistered(Node::kLinear, "linear", &Bind);

}  // namespace
}  // namespace bitshard
