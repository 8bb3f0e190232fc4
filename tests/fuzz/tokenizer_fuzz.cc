// Anything as tokenizer.json; what is accepted then encodes, decodes and streams some text.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/tokenizer.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bitshard;
  const auto tokenizer =
      Tokenizer::FromTokenizerJson(std::string_view(reinterpret_cast<const char*>(data), size), "");
  if (!tokenizer.ok()) return 0;
  for (std::string_view text :
       {"Hello <|im_end|>, 123  w\u00f6rld!\n\n \u4f60\u597d \U0001F600", ""}) {
    for (bool special : {false, true}) {
      const auto ids =
          (*tokenizer)->Encode(text, {.add_special = special, .parse_special = special});
      if (!ids.ok()) continue;
      IncrementalDetokenizer detokenizer(tokenizer->get(), special);
      std::string streamed;
      for (int32_t id : *ids) streamed += detokenizer.Push(id);
      streamed += detokenizer.Finish();
      CHECK(streamed == (*tokenizer)->Decode(*ids, special)) << streamed;
    }
  }
  return 0;
}
