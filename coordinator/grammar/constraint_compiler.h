// Constraints into grammars, here and now: xgrammar behind our interface.
//
// Compiling may take long and much memory whatever the size of the text; GrammarCompiler
// (grammar_compiler.h) bounds both.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "coordinator/grammar/constraint.h"
#include "coordinator/grammar/grammar_memory.h"
#include "coordinator/grammar/token_matcher.h"
#include "coordinator/grammar/vocabulary_bytes.h"

namespace bitshard {

// Thread-safe.
class ConstraintCompiler {
 public:
  // `limits`: of what the grammars may grow to while they are followed.
  explicit ConstraintCompiler(const VocabularyBytes& vocabulary,
                              const GrammarMemory::Limits& limits = GrammarMemory::Limits());
  ~ConstraintCompiler();

  // INVALID_ARGUMENT naming the field: it fails CheckConstraint, does not compile, asks for what
  // cannot be kept, or no text of this vocabulary's tokens fits. RESOURCE_EXHAUSTED: out of memory.
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(
      const Constraint& constraint) const;

 private:
  struct Impl;
  const std::unique_ptr<const Impl> impl_;
};

}  // namespace bitshard
