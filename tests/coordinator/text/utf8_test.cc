#include "coordinator/text/utf8.h"

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace bitshard {
namespace {

std::string Lossy(const std::string& bytes) {
  std::string out;
  EXPECT_EQ(AppendUtf8Lossy(bytes, /*keep_incomplete_tail=*/false, &out), 0u);
  return out;
}

TEST(Utf8, EveryCharacterRoundTrips) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_EQ(FirstInvalidUtf8(text), std::nullopt) << static_cast<uint32_t>(c);
    ASSERT_TRUE(CodePointAt(text, 0).value == c) << static_cast<uint32_t>(c);
    ASSERT_EQ(CodePointAt(text, 0).bytes, static_cast<int>(text.size()));
  }
}

TEST(Utf8, SurrogatesOverlongFormsAndTooLargeValuesAreInvalid) {
  EXPECT_EQ(FirstInvalidUtf8("ok\xED\xA0\x80"), 2u);    // U+D800
  EXPECT_EQ(FirstInvalidUtf8("\xC0\x80"), 0u);          // overlong NUL
  EXPECT_EQ(FirstInvalidUtf8("\xE0\x80\x80"), 0u);      // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x90\x80\x80"), 0u);  // U+110000
  EXPECT_EQ(FirstInvalidUtf8("a\xE2\x82"), 1u);         // cut
  EXPECT_EQ(FirstInvalidUtf8("\x80"), 0u);              // a tail alone
}

TEST(Utf8, EachMaximalInvalidPartBecomesOneReplacement) {
  EXPECT_EQ(Lossy("a\xF0\x9F\x98z"), "a\uFFFDz");
  EXPECT_EQ(Lossy("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(Lossy("\xC0\xAF"), "\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Lossy("\xE2\x82\xAC\xFF"), "\u20AC\uFFFD");
}

TEST(Utf8, CutAnywhereTheKeptTailCompletesTheSameText) {
  for (int seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    std::string bytes;
    const int length = static_cast<int>(random() % 12);
    constexpr unsigned char kPool[] = {'a',  0x80, 0xBF, 0xC2, 0xE2, 0x82, 0xAC, 0xF0,
                                       0x9F, 0x98, 0xED, 0xA0, 0xFF, 0xF4, 0x90};
    for (int i = 0; i < length; ++i) bytes += static_cast<char>(kPool[random() % sizeof(kPool)]);
    std::string streamed;
    std::string pending;
    for (char c : bytes) {
      pending += c;
      const size_t kept = AppendUtf8Lossy(pending, /*keep_incomplete_tail=*/true, &streamed);
      ASSERT_LE(kept, 3u);
      pending.erase(0, pending.size() - kept);
    }
    AppendUtf8Lossy(pending, /*keep_incomplete_tail=*/false, &streamed);
    ASSERT_EQ(streamed, Lossy(bytes)) << "seed " << seed;
    ASSERT_EQ(FirstInvalidUtf8(streamed), std::nullopt) << "seed " << seed;
  }
}

TEST(Utf8, ClassesFollowUnicode) {
  EXPECT_EQ(ClassOf(U'a'), CharClass::kLetter);
  EXPECT_EQ(ClassOf(U'\u4e2d'), CharClass::kLetter);
  EXPECT_EQ(ClassOf(U'\u0301'), CharClass::kMark);
  EXPECT_EQ(ClassOf(U'7'), CharClass::kNumber);
  EXPECT_EQ(ClassOf(U'\u00bd'), CharClass::kNumber);
  EXPECT_EQ(ClassOf(U'\u2167'), CharClass::kNumber);
  EXPECT_EQ(ClassOf(U'\n'), CharClass::kSpace);
  EXPECT_EQ(ClassOf(U'\u0085'), CharClass::kSpace);
  EXPECT_EQ(ClassOf(U'\u3000'), CharClass::kSpace);
  EXPECT_EQ(ClassOf(U'\u200b'), CharClass::kOther);
  EXPECT_EQ(ClassOf(U'\u180e'), CharClass::kOther);
  EXPECT_EQ(ClassOf(U'!'), CharClass::kOther);
}

}  // namespace
}  // namespace bitshard
