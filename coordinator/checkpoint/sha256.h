// SHA-256 as hex, fed piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace bitshard {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Add(std::string_view bytes);
  // With its length before it, so that the parts of different lists can never give the same digest.
  void AddField(std::string_view bytes);
  void AddField(uint64_t number);
  // Call once.
  std::string HexDigest();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace bitshard
