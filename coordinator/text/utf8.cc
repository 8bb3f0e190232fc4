#include "coordinator/text/utf8.h"

#include <array>

#include "unicode/uchar.h"

namespace bitshard {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

CharClass ClassOfSlow(char32_t value) {
  const uint32_t mask = U_MASK(u_charType(static_cast<UChar32>(value)));
  if (mask & U_GC_L_MASK) return CharClass::kLetter;
  if (mask & U_GC_M_MASK) return CharClass::kMark;
  if (mask & U_GC_N_MASK) return CharClass::kNumber;
  if (u_isUWhiteSpace(static_cast<UChar32>(value))) return CharClass::kSpace;
  return CharClass::kOther;
}

std::array<CharClass, 128> MakeAsciiClasses() {
  std::array<CharClass, 128> classes;
  for (char32_t c = 0; c < 128; ++c) classes[c] = ClassOfSlow(c);
  return classes;
}

}  // namespace

Utf8Head InspectUtf8(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Head::kComplete, 1};
  size_t length;
  unsigned char low = 0x80, high = 0xBF;  // bounds of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Head::kInvalid, 1};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Head::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Head::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Head::kComplete, length};
}

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Head head = InspectUtf8(text.substr(at));
    if (head.kind != Utf8Head::kComplete) return at;
    at += head.bytes;
  }
  return std::nullopt;
}

size_t AppendUtf8Lossy(std::string_view bytes, bool keep_incomplete_tail, std::string* out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Head head = InspectUtf8(bytes.substr(at));
    if (head.kind == Utf8Head::kIncomplete && keep_incomplete_tail) return bytes.size() - at;
    if (head.kind == Utf8Head::kComplete) {
      out->append(bytes, at, head.bytes);
    } else {
      out->append(kReplacement);
    }
    at += head.bytes;
  }
  return 0;
}

CodePoint CodePointAt(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[offset + i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

void AppendUtf8(char32_t value, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | value >> 6);
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3F));
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

CharClass ClassOf(char32_t value) {
  static const std::array<CharClass, 128> kAscii = MakeAsciiClasses();
  return value < 128 ? kAscii[value] : ClassOfSlow(value);
}

bool IsWordChar(char32_t value) {
  const uint32_t mask = U_MASK(u_charType(static_cast<UChar32>(value)));
  return (mask & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_isUAlphabetic(static_cast<UChar32>(value));
}

bool IsPrintable(char32_t value) {
  const uint32_t mask = U_MASK(u_charType(static_cast<UChar32>(value)));
  return value == U' ' || (mask & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

}  // namespace bitshard
