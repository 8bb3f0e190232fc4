// What memory holds before it is written, and the marks for AddressSanitizer around it. Included by
// the emulator's own sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace bitshard::emu {

// NaN as f32, f16 and bf16; neither zero nor -1 as an integer.
constexpr uint16_t kPoison = 0xffab;

inline void Poison(void* memory, size_t bytes) {
  char* const first = static_cast<char*>(memory);
  const uint64_t pattern = kPoison * uint64_t{0x0001000100010001};
  for (size_t at = 0; at + 8 <= bytes; at += 8) std::memcpy(first + at, &pattern, 8);
  std::memcpy(first + bytes / 8 * 8, &pattern, bytes % 8);
}

inline void ForbidAddressSanitizer(void* memory, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory, bytes);
#else
  (void)memory;
  (void)bytes;
#endif
}

inline void AllowAddressSanitizer(void* memory, size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory, bytes);
#else
  (void)memory;
  (void)bytes;
#endif
}

}  // namespace bitshard::emu
