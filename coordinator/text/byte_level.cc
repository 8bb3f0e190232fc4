#include "coordinator/text/byte_level.h"

#include <array>
#include <cstdint>

#include "coordinator/text/utf8.h"

namespace bitshard {
namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr int kMoved = 68;

struct Alphabet {
  std::array<std::string, 256> chars;
  std::array<int16_t, kFirstMoved + kMoved> bytes;  // code point -> byte, -1 for none

  Alphabet() {
    bytes.fill(-1);
    char32_t next = kFirstMoved;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t code = itself ? static_cast<char32_t>(b) : next++;
      AppendUtf8(code, &chars[b]);
      bytes[code] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet& alphabet = *new Alphabet;  // constant; never destroyed
  return alphabet;
}

}  // namespace

std::string_view ByteLevelChar(unsigned char byte) { return TheAlphabet().chars[byte]; }

std::optional<std::string> BytesOfByteLevel(std::string_view text) {
  const Alphabet& alphabet = TheAlphabet();
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = CodePointAt(text, at);
    if (c.value >= alphabet.bytes.size() || alphabet.bytes[c.value] < 0) return std::nullopt;
    out.push_back(static_cast<char>(alphabet.bytes[c.value]));
    at += c.bytes;
  }
  return out;
}

}  // namespace bitshard
