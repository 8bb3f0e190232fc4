#include "tests/support/golden_tensors.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

template <typename T>
std::vector<T> Read(const char* begin, const char* end) {
  std::vector<T> out((end - begin) / sizeof(T));
  std::memcpy(out.data(), begin, out.size() * sizeof(T));
  return out;
}

}  // namespace

absl::StatusOr<GoldenTensors> ReadGoldenTensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  const std::string all = bytes.str();
  if (all.size() < 8) return absl::NotFoundError(absl::StrCat(path, ": no golden file"));
  uint64_t header_bytes;
  std::memcpy(&header_bytes, all.data(), 8);
  const nlohmann::json header = nlohmann::json::parse(all.substr(8, header_bytes));
  const char* data = all.data() + 8 + header_bytes;
  GoldenTensors out;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string dtype = entry["dtype"];
    const char* begin = data + entry["data_offsets"][0].get<uint64_t>();
    const char* end = data + entry["data_offsets"][1].get<uint64_t>();
    if (dtype == "F32") out.f32[name] = Read<float>(begin, end);
    if (dtype == "I32") out.i32[name] = Read<int32_t>(begin, end);
  }
  return out;
}

double RelativeL2(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace bitshard
