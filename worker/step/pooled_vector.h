// A sequence's vector while its tokens' hidden states go into it, a row of a step at a time.
//
// Owned by the step thread, one object a slot. Every value is added up in f64, in the order of the
// tokens, so that its bits do not depend on how the tokens were cut into steps; nor on the
// instruction set, for the values of a hidden state have nothing to do with each other here.
#pragma once

#include <cstdint>
#include <vector>

#include "google/protobuf/repeated_field.h"

#include "proto/plan.pb.h"

namespace bitshard {

class PooledVector {
 public:
  // The only call that allocates.
  void Reserve(uint32_t width) { sum_.resize(width); }
  static uint64_t Bytes(uint32_t width) { return uint64_t{width} * sizeof(double); }

  // A new sequence.
  void Begin(internal::Pooling pooling);
  internal::Pooling pooling() const { return pooling_; }
  uint32_t tokens() const { return tokens_; }  // that went in

  // `hidden`: of the next tokens, [tokens, width].
  void Add(const float* hidden, uint32_t tokens);
  // All that went in was.
  bool Finite() const;
  // [width], rounded once. REQUIRES: tokens() > 0, Finite().
  void Write(google::protobuf::RepeatedField<float>* values) const;

 private:
  internal::Pooling pooling_ = internal::POOLING_NONE;
  uint32_t tokens_ = 0;
  std::vector<double> sum_;  // with POOLING_LAST the last token's alone
};

}  // namespace bitshard
