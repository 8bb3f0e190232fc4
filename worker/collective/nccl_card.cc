#include "worker/collective/nccl_card.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace bitshard {
namespace {

constexpr uint64_t kMagic = 0x31304c43434e5342;  // "BSNCCL01"; changes with the card

}  // namespace

std::string NcclCard::Pack() const {
  std::string text(sizeof(kMagic) + sizeof(version) + sizeof(id), '\0');
  std::memcpy(text.data(), &kMagic, sizeof(kMagic));
  std::memcpy(text.data() + sizeof(kMagic), &version, sizeof(version));
  std::memcpy(text.data() + sizeof(kMagic) + sizeof(version), &id, sizeof(id));
  return text + device_id;
}

bool NcclCard::Unpack(const std::string& text) {
  uint64_t magic = 0;
  if (text.size() < sizeof(magic) + sizeof(version) + sizeof(id)) return false;
  std::memcpy(&magic, text.data(), sizeof(magic));
  std::memcpy(&version, text.data() + sizeof(magic), sizeof(version));
  std::memcpy(&id, text.data() + sizeof(magic) + sizeof(version), sizeof(id));
  device_id = text.substr(sizeof(magic) + sizeof(version) + sizeof(id));
  return magic == kMagic;
}

std::string NameOfGpu(const Device& device) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, device.facts().index) != cudaSuccess) return "";
  const absl::string_view bytes(properties.uuid.bytes, sizeof(properties.uuid.bytes));
  if (bytes.find_first_not_of('\0') == absl::string_view::npos) return "";
  const std::string hex = absl::BytesToHexString(bytes);
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

}  // namespace bitshard
