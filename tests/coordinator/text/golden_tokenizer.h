// The tokenizer goldens of tests/golden/tokenizer, read whole.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "coordinator/text/tokenizer.h"
#include "tests/support/test_paths.h"

namespace bitshard {

inline constexpr const char* kDialects[] = {"gpt2-digits", "llama3",   "qwen2",    "qwen35",
                                            "o200k",       "deepseek", "tiny-512", "tiny-2048"};

inline std::string ReadFileOrDie(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  EXPECT_TRUE(file.good()) << path;
  return bytes.str();
}

inline std::string GoldenTokenizerFile(const std::string& dialect, const std::string& name) {
  return GoldenFile("tokenizer/" + dialect + "/" + name);
}

inline nlohmann::json GoldenTokenizerJson(const std::string& dialect, const std::string& name) {
  return nlohmann::json::parse(ReadFileOrDie(GoldenTokenizerFile(dialect, name)));
}

// Null, with a test failure, when it cannot be built.
inline std::unique_ptr<Tokenizer> GoldenTokenizer(const std::string& dialect) {
  auto tokenizer = Tokenizer::FromTokenizerJson(
      ReadFileOrDie(GoldenTokenizerFile(dialect, "tokenizer.json")), "");
  EXPECT_TRUE(tokenizer.ok()) << dialect << ": " << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

}  // namespace bitshard
