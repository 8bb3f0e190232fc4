// Where tests find their data: golden files in the runfiles, models that tests/run.sh has fetched.
#pragma once

#include <cstdlib>
#include <string>

namespace bitshard {

// A file of the source tree that the test names as its data, by its path from the root.
inline std::string RunfilesPath(const std::string& path) {
  const char* runfiles = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (runfiles == nullptr || workspace == nullptr) return path;
  return std::string(runfiles) + "/" + workspace + "/" + path;
}

inline std::string GoldenFile(const std::string& name) {
  return RunfilesPath("tests/golden/" + name);
}

// A checkpoint copied into tests/golden/models.
inline std::string GoldenModel(const std::string& name) { return GoldenFile("models/" + name); }

// SmolLM2-135M-Instruct.Q4_1.gguf; empty when tests/run.sh has not told where it is.
inline std::string SmolLm2Path() {
  const char* models = std::getenv("BITSHARD_TEST_MODELS");
  return models == nullptr ? "" : std::string(models) + "/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace bitshard
