// Anything as a GGUF header, through to config, vocabulary and names.
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"

#include "coordinator/checkpoint/byte_cursor.h"
#include "coordinator/checkpoint/gguf.h"
#include "coordinator/checkpoint/gguf_config.h"
#include "coordinator/checkpoint/gguf_names.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bitshard;
  ByteCursor cursor(
      [data, size](uint64_t offset, uint64_t count, char* out) {
        CHECK(offset <= size && count <= size - offset) << "asked for bytes that are not there";
        std::memcpy(out, data + offset, count);
        return absl::OkStatus();
      },
      size, "fuzz");
  const auto header = ParseGguf(cursor);
  if (!header.ok()) return 0;
  TensorIndex index;
  index.AddFile({.path = "fuzz", .size_bytes = size});
  for (const GgufTensor& tensor : header->tensors) {
    CHECK(tensor.offset <= size && tensor.bytes <= size - tensor.offset) << tensor.name;
    TensorInfo info;
    info.name = CanonicalGgufName(tensor.name);
    info.parts = {{.source_name = tensor.name, .offset = tensor.offset, .bytes = tensor.bytes}};
    (void)index.Add(std::move(info));
  }
  (void)GgufModelConfig(header->metadata, index);
  const auto vocab = ReadGgufVocab(header->metadata);
  if (vocab.ok()) (void)GgufEndIds(*vocab);
  return 0;
}
