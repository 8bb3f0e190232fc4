#include "coordinator/checkpoint/sha256.h"

#include "absl/strings/escaping.h"
#include <openssl/evp.h>

#include "kernels/base/check.h"

namespace bitshard {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  CHECK_EQ(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr), 1);
}

Sha256::~Sha256() = default;

void Sha256::Add(std::string_view bytes) {
  CHECK_EQ(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()), 1);
}

void Sha256::AddField(std::string_view bytes) {
  AddField(bytes.size());
  Add(bytes);
}

void Sha256::AddField(uint64_t number) {
  char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
  Add({bytes, sizeof(bytes)});
}

std::string Sha256::HexDigest() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK_EQ(EVP_DigestFinal_ex(context_->evp, digest, &size), 1);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace bitshard
