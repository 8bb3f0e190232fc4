#include "tests/support/byte_tokenizer.h"

#include <string>
#include <utility>

#include "coordinator/text/gguf_vocab.h"
#include "kernels/base/check.h"

namespace bitshard {
namespace {

// The byte-level alphabet: printable Latin-1 stands for itself, the rest for U+0100 and on.
std::string AlphabetChar(int byte, int* next_spare) {
  const bool itself =
      (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  const int code_point = itself ? byte : 0x100 + (*next_spare)++;
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "gpt-2";
  int next_spare = 0;
  for (int byte = 0; byte < 256; ++byte) {
    vocab.tokens.push_back(AlphabetChar(byte, &next_spare));
    vocab.token_types.push_back(1);
  }
  vocab.tokens.push_back("<|end|>");
  vocab.token_types.push_back(3);
  vocab.eos_id = kByteTokenizerEos;
  vocab.add_bos = false;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromGgufVocab(vocab);
  CHECK_OK(tokenizer.status());
  return *std::move(tokenizer);
}

}  // namespace bitshard
