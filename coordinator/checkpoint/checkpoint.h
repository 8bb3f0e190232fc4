// A model on disk, opened: where its tensors lie, what its config says, and where its tokenizer
// comes from.
//
// Only headers and side files are read (pread), never a weight: opening a 100 GB checkpoint takes
// milliseconds. Files are hostile until validated here; after OpenCheckpoint the rest of the
// coordinator trusts them.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/config.h"
#include "coordinator/checkpoint/tensor_index.h"
#include "coordinator/text/gguf_vocab.h"

namespace bitshard {

// The bytes of the model folder's files; empty when a file is not there
// (Tokenizer::FromTokenizerJson judges them).
struct HfTokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

struct Checkpoint {
  enum class Container { kHfFolder, kGguf };

  std::string path;  // absolute: the folder, or the (first) GGUF file
  std::string
      name;  // for people and ListModels: GGUF general.name, else the folder's or file's name
  Container container = Container::kHfFolder;
  TensorIndex index;
  ModelConfig config;
  std::variant<HfTokenizerFiles, GgufVocab> tokenizer;
  std::string chat_template;  // Jinja source, empty when the model has none
  std::string bos_token;      // the texts that chat templates want; may be empty
  std::string eos_token;
  // Tokens that end an answer: config, generation_config, GGUF's eos, eot and eom, and control
  // tokens of known names. Ascending, unique, inside the vocabulary.
  std::vector<int32_t> eos_ids;

  const std::string& model_digest() const { return index.model_digest(); }
};

// `path`: a Hugging Face folder, a GGUF file (or the first of its parts), or a folder with one GGUF
// model in it. NOT_FOUND (no such file, a shard is missing), INVALID_ARGUMENT (not a checkpoint, or
// one that contradicts itself), DATA_LOSS (damaged or truncated), UNIMPLEMENTED (a form that we do
// not have: says which we do).
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path);

}  // namespace bitshard
