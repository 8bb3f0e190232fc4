#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/text/gguf_vocab.h"
#include "coordinator/text/tokenizer.h"
#include "tests/coordinator/text/golden_tokenizer.h"

namespace bitshard {
namespace {

using nlohmann::json;

// The status of the llama3 dialect's file after `change`, with `config` as tokenizer_config.json.
absl::Status Changed(const std::function<void(json&)>& change, const std::string& config = "") {
  json file = GoldenTokenizerJson("llama3", "tokenizer.json");
  change(file);
  return Tokenizer::FromTokenizerJson(file.dump(), config).status();
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, std::string_view name) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(std::string(status.message()).find(name), std::string::npos) << status;
}

TEST(TokenizerJson, UnknownComponentsAreNamed) {
  constexpr auto kCode = absl::StatusCode::kUnimplemented;
  ExpectRefused(Changed([](json& j) {
                  j["normalizer"] = {{"type", "Precompiled"}};
                }),
                kCode, "'Precompiled'");
  ExpectRefused(
      Changed([](json& j) {
        j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}}}}};
      }),
      kCode, "'Prepend'");
  ExpectRefused(Changed([](json& j) {
                  j["pre_tokenizer"] = {{"type", "Metaspace"}};
                }),
                kCode, "'Metaspace'");
  ExpectRefused(Changed([](json& j) { j["pre_tokenizer"] = nullptr; }), kCode, "SentencePiece");
  ExpectRefused(Changed([](json& j) {
                  j["post_processor"] = {{"type", "BertProcessing"}};
                }),
                kCode, "'BertProcessing'");
  ExpectRefused(Changed([](json& j) {
                  j["decoder"] = {{"type", "WordPiece"}};
                }),
                kCode, "'WordPiece'");
  ExpectRefused(Changed([](json& j) { j["model"]["type"] = "Unigram"; }), kCode, "'Unigram'");
  ExpectRefused(Changed([](json& j) { j["model"]["byte_fallback"] = true; }), kCode,
                "byte_fallback");
  ExpectRefused(
      Changed([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Contiguous"; }),
      kCode, "'Contiguous'");
}

TEST(TokenizerJson, BrokenFilesAreDataLossWithTheReason) {
  constexpr auto kCode = absl::StatusCode::kDataLoss;
  ExpectRefused(Tokenizer::FromTokenizerJson("", "").status(), kCode, "tokenizer.json");
  ExpectRefused(Tokenizer::FromTokenizerJson("{\"model\": {", "").status(), kCode, "JSON");
  ExpectRefused(Tokenizer::FromTokenizerJson("[]", "").status(), kCode, "object");
  ExpectRefused(Tokenizer::FromTokenizerJson("{}", "").status(), kCode, "model");
  ExpectRefused(Tokenizer::FromTokenizerJson(std::string(100000, '['), "").status(), kCode,
                "nested");
  ExpectRefused(Changed([](json& j) { j["model"].erase("vocab"); }), kCode, "vocab");
  ExpectRefused(Changed([](json& j) { j["model"]["merges"] = 5; }), kCode, "merges");
  ExpectRefused(Changed([](json& j) { j["model"]["merges"][3] = "ab"; }), kCode, "merge 3");
  ExpectRefused(Changed([](json& j) {
                  j["model"]["merges"].push_back({"a", "nope"});
                }),
                kCode, "nope");
  ExpectRefused(Changed([](json& j) { j["model"]["vocab"]["zz"] = 7; }), kCode, "7");
  ExpectRefused(Changed([](json& j) { j["model"]["vocab"]["zz"] = -1; }), kCode, "id");
  ExpectRefused(Changed([](json& j) { j["model"]["vocab"]["zz"] = 2000000000; }), kCode,
                "2000000000");
  ExpectRefused(Changed([](json& j) { j["added_tokens"][0]["id"] = 9; }), kCode,
                "<|begin_of_text|>");
  ExpectRefused(Changed([](json& j) { j["added_tokens"][0].erase("content"); }), kCode, "content");
  ExpectRefused(
      Changed([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "("; }),
      kCode, "compile");
  ExpectRefused(
      Changed([](json& j) {
        j["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = {
            99999};
      }),
      kCode, "99999");
  ExpectRefused(Changed([](json&) {}, R"({"added_tokens_decoder": {"3": {"content": "other"}}})"),
                kCode, "other");
}

TEST(TokenizerJson, ConfigNamesBosAndEndTokensAndAddsTokens) {
  const std::string file = ReadFileOrDie(GoldenTokenizerFile("llama3", "tokenizer.json"));
  const auto tokenizer = Tokenizer::FromTokenizerJson(file, R"({
      "bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|end_of_text|>"},
      "added_tokens_decoder": {"700": {"content": "<tool>", "special": false}}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->bos_id(), 0);
  EXPECT_EQ((*tokenizer)->eos_ids(), (std::vector<int32_t>{1, 4}));  // and <|eot_id|>
  EXPECT_EQ((*tokenizer)->vocab_size(), 701);
  EXPECT_EQ((*tokenizer)->TokenBytes(650), "");  // a gap
  EXPECT_EQ(*(*tokenizer)->Encode("<tool>", {.add_special = false}), (std::vector<int32_t>{700}));
}

TEST(TokenizerJson, AddedTokensTakeSpacesAndStandAloneWhenTheySaySo) {
  json file = GoldenTokenizerJson("gpt2-digits", "tokenizer.json");
  file["added_tokens"].push_back({{"id", 640},
                                  {"content", "<mask>"},
                                  {"special", true},
                                  {"lstrip", true},
                                  {"rstrip", true},
                                  {"normalized", false},
                                  {"single_word", false}});
  file["added_tokens"].push_back({{"id", 641},
                                  {"content", "word"},
                                  {"special", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", true},
                                  {"single_word", true}});
  const auto tokenizer = Tokenizer::FromTokenizerJson(file.dump(), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto encode = [&](const char* text) {
    return *(*tokenizer)->Encode(text, {.add_special = false, .parse_special = true});
  };
  const auto a = (*tokenizer)->TokenToId("a");
  ASSERT_TRUE(a.has_value());
  EXPECT_EQ(encode("a  <mask> \n a"), (std::vector<int32_t>{*a, 640, *a}));
  EXPECT_EQ(encode("word"), (std::vector<int32_t>{641}));
  const std::vector<int32_t> ids = encode("swords word, word");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 641), 2);
}

GgufVocab SmallGguf() {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "gpt-2";
  vocab.tokens = {"<s>", "a", "b", "ab", "</s>"};
  vocab.token_types = {3, 1, 1, 1, 3};
  vocab.merges = {"a b"};
  return vocab;
}

absl::Status ChangedGguf(const std::function<void(GgufVocab&)>& change) {
  GgufVocab vocab = SmallGguf();
  change(vocab);
  return Tokenizer::FromGgufVocab(vocab).status();
}

TEST(TokenizerGguf, UnknownKindsAreNamed) {
  constexpr auto kCode = absl::StatusCode::kUnimplemented;
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.model = "llama"; }), kCode, "SentencePiece");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.model = "bert"; }), kCode, "'bert'");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.pre = "nonsense"; }), kCode, "'nonsense'");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.pre = ""; }), kCode, "missing");
}

TEST(TokenizerGguf, BrokenMetadataIsDataLossWithTheReason) {
  constexpr auto kCode = absl::StatusCode::kDataLoss;
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.tokens.clear(); }), kCode, "tokens");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.token_types.pop_back(); }), kCode, "token_type");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.token_types[1] = 9; }), kCode, "token_type");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.token_types[1] = 6; }), kCode, "byte token");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.tokens[1] = "\xFF"; }), kCode, "UTF-8");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.merges = {"ab"}; }), kCode, "merges");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.merges = {""}; }), kCode, "merges");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.merges = {"b a"}; }), kCode, "ba");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.bos_id = 5; }), kCode, "bos_token_id");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.eot_id = -1; }), kCode, "eot_token_id");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.add_bos = true; }), kCode, "bos_token_id");
  ExpectRefused(ChangedGguf([](GgufVocab& v) { v.add_eos = true; }), kCode, "eos_token_id");
}

TEST(TokenizerGguf, BosAndEosSurroundTheTextWhenTheFileSaysSo) {
  GgufVocab vocab = SmallGguf();
  vocab.bos_id = 0;
  vocab.eos_id = 4;
  vocab.add_bos = true;
  vocab.add_eos = true;
  const auto tokenizer = Tokenizer::FromGgufVocab(vocab);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("ab", {.add_special = true}), (std::vector<int32_t>{0, 3, 4}));
  EXPECT_EQ(*(*tokenizer)->Encode("ab", {.add_special = false}), (std::vector<int32_t>{3}));
  EXPECT_EQ((*tokenizer)->eos_ids(), (std::vector<int32_t>{4}));
}

TEST(TokenizerGguf, ControlTokensAreOnlyTakenFromTextWhenAsked) {
  const auto tokenizer = Tokenizer::FromGgufVocab(SmallGguf());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(*(*tokenizer)->Encode("a</s>b", {.parse_special = true}),
            (std::vector<int32_t>{1, 4, 2}));
  EXPECT_EQ(*(*tokenizer)->Encode("a</s>b", {.parse_special = false}),
            (std::vector<int32_t>{1, 2}));  // the other letters are not in this vocabulary
}

}  // namespace
}  // namespace bitshard
