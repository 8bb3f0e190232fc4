// What a step must do at the least, counted from its plan: for the metrics, which compare it with
// what the machine can do.
#pragma once

#include <cstdint>

#include "proto/graph.pb.h"
#include "proto/plan.pb.h"
#include "worker/load/loader.h"

namespace bitshard {

class StepWork {
 public:
  struct Amount {
    uint64_t read_bytes = 0;  // weights once a step, the cache of every row once
    uint64_t flops = 0;       // of the matrices: 2 x rows x columns for each token or output
  };

  StepWork() = default;
  // `block_bytes`: of a cache block on this rank, all layers.
  StepWork(const internal::ModelGraph& graph, const LoadedWeights& weights, uint64_t block_bytes,
           uint32_t block_tokens);

  Amount Of(const internal::StepPlan& plan) const;

 private:
  uint64_t token_bytes_ = 0, token_flops_ = 0;    // of the linear nodes
  uint64_t output_bytes_ = 0, output_flops_ = 0;  // of lm_head
  uint64_t block_bytes_ = 0;
  uint32_t block_tokens_ = 1;
};

}  // namespace bitshard
