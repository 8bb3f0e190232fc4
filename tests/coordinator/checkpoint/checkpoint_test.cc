// OpenCheckpoint on the fixtures, and on what people give by mistake.
#include "coordinator/checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <variant>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

namespace fs = std::filesystem;

void ExpectError(const std::string& path, absl::StatusCode code, const std::string& part) {
  const absl::Status status = OpenCheckpoint(path).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << "\nlacks: " << part;
}

// A copy of tiny-llama-q whose files a test may change.
std::string CopyOfTinyLlamaQ() {
  const std::string folder = TempFolder() + "/model";
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja", "model.safetensors"}) {
    WriteFile(folder + "/" + name, ReadFile(GoldenModel("tiny-llama-q") + "/" + name));
  }
  return folder;
}

TEST(Checkpoint, ReadsAHuggingFaceFolder) {
  const auto checkpoint = OpenCheckpoint(GoldenModel("tiny-llama"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->name, "tiny-llama");
  EXPECT_EQ(checkpoint->container, Checkpoint::Container::kHfFolder);
  const ModelConfig& config = checkpoint->config;
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.hidden_size, 256);
  EXPECT_EQ(config.intermediate_size, 768);
  EXPECT_EQ(config.vocab_size, 2048);
  EXPECT_EQ(config.context_length, 2048);
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.rms_norm_epsilon, 1e-5);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.bos_id, 0);
  const auto* const llama3 = std::get_if<RopeConfig::Llama3>(&config.rope.scaling);
  ASSERT_NE(llama3, nullptr);
  EXPECT_EQ(llama3->factor, 4);
  EXPECT_EQ(llama3->original_context, 512);
  EXPECT_EQ(config.rope.pairing, RopeConfig::Pairing::kHalves);
  EXPECT_EQ(config.rope.rotary_dim, 32);

  EXPECT_EQ(checkpoint->eos_ids, (std::vector<int32_t>{2}));
  EXPECT_EQ(checkpoint->bos_token, "<|endoftext|>");
  EXPECT_EQ(checkpoint->eos_token, "<|im_end|>");
  EXPECT_EQ(checkpoint->chat_template,
            ReadFile(GoldenModel("tiny-llama") + "/chat_template.jinja"));
  const auto* const tokenizer = std::get_if<HfTokenizerFiles>(&checkpoint->tokenizer);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->tokenizer_json.size(), 124462);
  EXPECT_EQ(tokenizer->tokenizer_config_json.size(), 346);

  const TensorInfo* const q = checkpoint->index.Find("model.layers.3.self_attn.q_proj.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->format, "bf16");
  EXPECT_EQ(q->rows, 256);
  EXPECT_EQ(q->cols, 256);
  EXPECT_EQ(q->bytes(), 256 * 256 * 2);
  EXPECT_EQ(checkpoint->index.files().size(), 1);
  EXPECT_EQ(checkpoint->index.files()[0].size_bytes, 8397400);
  EXPECT_EQ(checkpoint->model_digest().size(), 64);
}

TEST(Checkpoint, ReadsAGgufFile) {
  const auto checkpoint = OpenCheckpoint(GoldenModel("gguf-Q4_1") + "/tiny-llama-q-Q4_1.gguf");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->name, "Tiny Llama Q");
  EXPECT_EQ(checkpoint->container, Checkpoint::Container::kGguf);
  const ModelConfig& config = checkpoint->config;
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.hidden_size, 128);
  EXPECT_EQ(config.intermediate_size, 512);
  EXPECT_EQ(config.vocab_size, 512);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.rope.pairing, RopeConfig::Pairing::kInterleaved);
  EXPECT_FALSE(config.tied_embeddings);

  const auto* const vocab = std::get_if<GgufVocab>(&checkpoint->tokenizer);
  ASSERT_NE(vocab, nullptr);
  EXPECT_EQ(vocab->model, "gpt2");
  EXPECT_EQ(vocab->pre, "llama-bpe");
  EXPECT_EQ(vocab->tokens.size(), 512);
  EXPECT_EQ(vocab->token_types.size(), 512);
  EXPECT_FALSE(vocab->merges.empty());
  EXPECT_EQ(vocab->eos_id, 2);
  EXPECT_EQ(checkpoint->eos_token, "<|im_end|>");
  EXPECT_FALSE(checkpoint->chat_template.empty());
  // eos, and the control token <|endoftext|>.
  EXPECT_EQ(checkpoint->eos_ids, (std::vector<int32_t>{0, 2}));

  const TensorInfo* const head = checkpoint->index.Find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->source_name(), "output.weight");
  EXPECT_EQ(head->format, "q8_0");
  EXPECT_EQ(head->rows, 512);
  EXPECT_EQ(head->cols, 128);
  EXPECT_EQ(checkpoint->index.Find("model.layers.1.mlp.down_proj.weight")->format, "q4_1");
}

TEST(Checkpoint, AFolderWithOneGgufModelIsThatModel) {
  const auto folder = OpenCheckpoint(GoldenModel("gguf-Q8_0"));
  const auto file = OpenCheckpoint(GoldenModel("gguf-Q8_0") + "/tiny-llama-q-Q8_0.gguf");
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(folder->model_digest(), file->model_digest());
}

TEST(Checkpoint, TheDigestChangesWithTheConfigAndNotWithTheFolder) {
  const std::string folder = CopyOfTinyLlamaQ();
  const std::string before = OpenCheckpoint(folder)->model_digest();
  EXPECT_EQ(before, OpenCheckpoint(GoldenModel("tiny-llama-q"))->model_digest());
  std::string config = ReadFile(folder + "/config.json");
  config.replace(config.find("1e-05"), 5, "1e-06");
  WriteFile(folder + "/config.json", config);
  EXPECT_NE(before, OpenCheckpoint(folder)->model_digest());
}

TEST(Checkpoint, DigestTellsFineTunesApart) {
  const std::string folder = CopyOfTinyLlamaQ();
  const std::string before = OpenCheckpoint(folder)->model_digest();
  // Same names, shapes, sizes and places; every weight another.
  std::string weights = ReadFile(folder + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, weights.data(), sizeof header_bytes);
  for (size_t i = 8 + header_bytes; i < weights.size(); i += 2) weights[i] ^= 1;
  WriteFile(folder + "/model.safetensors", weights);
  EXPECT_NE(before, OpenCheckpoint(folder)->model_digest());
}

TEST(Checkpoint, TheNameOfACachedHubModelIsItsRepositorys) {
  const std::string cache = TempFolder() + "/models--people--tiny-llama-q/snapshots/0a1b";
  for (const auto& entry : fs::directory_iterator(CopyOfTinyLlamaQ())) {
    WriteFile(cache + "/" + entry.path().filename().string(), ReadFile(entry.path().string()));
  }
  const auto checkpoint = OpenCheckpoint(cache);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->name, "tiny-llama-q");
}

TEST(Checkpoint, EosIdsAreTheUnionOfBothConfigs) {
  const std::string folder = CopyOfTinyLlamaQ();
  WriteFile(folder + "/generation_config.json", R"({"eos_token_id": [7, 2, 1]})");
  EXPECT_EQ(OpenCheckpoint(folder)->eos_ids, (std::vector<int32_t>{1, 2, 7}));
  WriteFile(folder + "/generation_config.json", R"({"eos_token_id": [512]})");
  ExpectError(folder, absl::StatusCode::kInvalidArgument, "below 512");
}

TEST(Checkpoint, ATemplateFileWinsOverTheTokenizersConfig) {
  const std::string folder = CopyOfTinyLlamaQ();
  WriteFile(
      folder + "/tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
                "bos_token": {"content": "<b>", "lstrip": false}, "eos_token": null})");
  EXPECT_NE(OpenCheckpoint(folder)->chat_template, "D");
  fs::remove(folder + "/chat_template.jinja");
  const auto checkpoint = OpenCheckpoint(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->chat_template, "D");
  EXPECT_EQ(checkpoint->bos_token, "<b>");
  EXPECT_EQ(checkpoint->eos_token, "");
}

TEST(Checkpoint, SideFilesMayBeMissing) {
  const std::string folder = CopyOfTinyLlamaQ();
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja"}) {
    fs::remove(folder + "/" + name);
  }
  const auto checkpoint = OpenCheckpoint(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(std::get<HfTokenizerFiles>(checkpoint->tokenizer).tokenizer_json, "");
  EXPECT_EQ(checkpoint->eos_ids, (std::vector<int32_t>{2}));
}

TEST(Checkpoint, WhatIsNoCheckpointIsRefusedWithTheReason) {
  const std::string folder = TempFolder();
  ExpectError("", absl::StatusCode::kInvalidArgument,
              "give a Hugging Face model folder or a GGUF file");
  ExpectError(folder + "/nothing", absl::StatusCode::kNotFound, "does not exist");
  ExpectError(folder, absl::StatusCode::kInvalidArgument, "neither a config.json nor a GGUF file");
  ExpectError(WriteFile(folder + "/a/notes.txt", "hello"), absl::StatusCode::kInvalidArgument,
              "is not a checkpoint");
  ExpectError(WriteFile(folder + "/b/m.gguf", ""), absl::StatusCode::kDataLoss, "is empty");
  ExpectError(WriteFile(folder + "/c/m.gguf",
                        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
              absl::StatusCode::kDataLoss, "Git-LFS pointer");
  ExpectError(WriteFile(folder + "/d/m.gguf", "<html>404</html>"), absl::StatusCode::kDataLoss,
              "does not begin with");
  ExpectError(WriteFile(folder + "/e/model.safetensors", "12345678{}"),
              absl::StatusCode::kInvalidArgument, "give its folder");
  ExpectError(WriteFile(folder + "/f/weights.bin", "anything"), absl::StatusCode::kUnimplemented,
              "pickle");
  ExpectError(WriteFile(folder + "/g/model", std::string("PK\3\4zip", 7)),
              absl::StatusCode::kUnimplemented, "pickle");
  ExpectError(GoldenModel("tiny-llama") + "/config.json", absl::StatusCode::kInvalidArgument,
              "is not a checkpoint");
  const std::string fifo = folder + "/fifo.gguf";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ExpectError(fifo, absl::StatusCode::kInvalidArgument, "not a regular file");
  WriteFile(folder + "/h/one.gguf", "GGUF");
  WriteFile(folder + "/h/two.gguf", "GGUF");
  ExpectError(folder + "/h", absl::StatusCode::kInvalidArgument, "holds 2 GGUF models");
}

TEST(Checkpoint, DamagedFoldersAreRefusedWithTheReason) {
  const std::string folder = CopyOfTinyLlamaQ();
  const std::string config = ReadFile(folder + "/config.json");
  WriteFile(folder + "/config.json", "{");
  ExpectError(folder, absl::StatusCode::kDataLoss, "config.json: no valid JSON at byte");
  WriteFile(folder + "/config.json", config);
  WriteFile(folder + "/generation_config.json", "[]");
  ExpectError(folder, absl::StatusCode::kInvalidArgument,
              "generation_config.json is not a JSON object");
  fs::remove(folder + "/generation_config.json");
  WriteFile(folder + "/tokenizer_config.json", R"({"bos_token": 1})");
  ExpectError(folder, absl::StatusCode::kInvalidArgument,
              "\"bos_token\" is not the text of a token");
  fs::remove(folder + "/tokenizer_config.json");

  WriteFile(folder + "/model.safetensors",
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  ExpectError(folder, absl::StatusCode::kDataLoss, "Git-LFS pointer");
  fs::remove(folder + "/model.safetensors");
  ExpectError(folder, absl::StatusCode::kNotFound, "no *.safetensors weights");
  WriteFile(folder + "/pytorch_model.bin", "x");
  ExpectError(folder, absl::StatusCode::kUnimplemented, "pickles");
}

TEST(Checkpoint, UndeclaredQuantizationIsRefused) {
  const std::string folder = CopyOfTinyLlamaQ();
  WriteFile(folder + "/quantize_config.json", "{}");
  ExpectError(folder, absl::StatusCode::kUnimplemented,
              "quantize_config.json declares a quantization");
}

}  // namespace
}  // namespace bitshard
