// Recognises the stages of tokenizer.json around the model: normalizer, pre_tokenizer,
// post_processor, decoder.
//
// A component type that we do not have is UNIMPLEMENTED with its name and the list of those that we
// have.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/text/json_members.h"
#include "coordinator/text/normalizer.h"
#include "coordinator/text/pre_tokenizer.h"
#include "coordinator/text/vocabulary.h"

namespace bitshard {

// Each takes the member of the top-level object, or null when there is none.
absl::StatusOr<Normalizer> ReadNormalizer(const Json* json);

struct PreTokenizerStage {
  PreTokenizer pre_tokenizer;
  bool add_prefix_space = false;
};
absl::StatusOr<PreTokenizerStage> ReadPreTokenizer(const Json* json);

struct PostProcessorStage {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};
absl::StatusOr<PostProcessorStage> ReadPostProcessor(const Json* json,
                                                     const Vocabulary& vocabulary);

// OK when ids decode by joining their byte-level bytes, which is what Tokenizer::Decode does.
absl::Status CheckDecoder(const Json* json);

}  // namespace bitshard
