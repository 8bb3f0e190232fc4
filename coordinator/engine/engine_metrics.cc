#include "coordinator/engine/engine_metrics.h"

namespace bitshard {

absl::string_view Name(StepKind kind) {
  switch (kind) {
    case StepKind::kPrefill:
      return "prefill";
    case StepKind::kDecode:
      return "decode";
    case StepKind::kMixed:
      return "mixed";
    case StepKind::kIdle:
      return "idle";
  }
  return "unknown";
}

absl::string_view Name(Face face) {
  switch (face) {
    case Face::kOwn:
      return "own";
    case Face::kKserve:
      return "kserve";
    case Face::kVllm:
      return "vllm";
  }
  return "unknown";
}

absl::string_view Name(SchedulerOp op) {
  switch (op) {
    case SchedulerOp::kPlan:
      return "plan";
    case SchedulerOp::kCommit:
      return "commit";
  }
  return "unknown";
}

absl::string_view Name(TokenizerOp op) {
  switch (op) {
    case TokenizerOp::kRequest:
      return "request";
    case TokenizerOp::kTokenize:
      return "tokenize";
    case TokenizerOp::kDetokenize:
      return "detokenize";
    case TokenizerOp::kTemplate:
      return "apply_chat_template";
  }
  return "unknown";
}

absl::string_view Name(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return "json_schema";
    case GrammarKind::kRegex:
      return "regex";
    case GrammarKind::kChoice:
      return "choice";
    case GrammarKind::kEbnf:
      return "ebnf";
  }
  return "unknown";
}

absl::string_view Name(EngineStats::GroupState state) {
  switch (state) {
    case EngineStats::GroupState::kForming:
      return "forming";
    case EngineStats::GroupState::kReady:
      return "ready";
    case EngineStats::GroupState::kLost:
      return "lost";
  }
  return "unknown";
}

absl::string_view Name(LossCause cause) {
  switch (cause) {
    case LossCause::kWorkerLost:
      return "worker_lost";
    case LossCause::kTimeout:
      return "timeout";
    case LossCause::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace bitshard
