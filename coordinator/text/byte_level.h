// The byte-level alphabet of GPT-2: each of the 256 bytes written as one printable character.
//
// Bytes 0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF stand for themselves as code points; the other 68, in
// increasing order, are U+0100, U+0101, ...: a space is U+0120, a newline U+010A. Vocabularies and
// merges are written in these characters.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace bitshard {

// The character for `byte`, as UTF-8.
std::string_view ByteLevelChar(unsigned char byte);

// The bytes that a byte-level text stands for; nullopt when it has a character outside the
// alphabet. REQUIRES: valid UTF-8.
std::optional<std::string> BytesOfByteLevel(std::string_view text);

}  // namespace bitshard
