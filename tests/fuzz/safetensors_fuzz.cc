// Anything as a safetensors file: length, header, data.
#include <cstdint>
#include <cstring>
#include <string_view>

#include "coordinator/checkpoint/safetensors.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;
  uint64_t header_bytes;
  std::memcpy(&header_bytes, data, 8);
  if (header_bytes > size - 8) return 0;
  const uint64_t data_bytes = size - 8 - header_bytes;
  const auto header = bitshard::ParseSafetensorsHeader(
      {reinterpret_cast<const char*>(data) + 8, header_bytes}, data_bytes, "fuzz");
  if (!header.ok()) return 0;
  uint64_t end = 0;
  for (const auto& entry : header->entries) {
    CHECK_EQ(entry.begin, end) << entry.name;
    end = entry.end;
  }
  CHECK_EQ(end, data_bytes);
  return 0;
}
