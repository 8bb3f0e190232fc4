#include "tests/gpu/ceilings.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include <nlohmann/json.hpp>

#include "kernels/base/float_types.h"
#include "kernels/base/status_macros.h"
#include "tests/gpu/cublas.h"
#include "tests/gpu/probes.h"
#include "tests/gpu/timing.h"

namespace bitshard {
namespace {

absl::Status MeasureCopy(Device& device, const CeilingsSize& size, DeviceStream& stream,
                         Ceilings* ceilings) {
  ASSIGN_OR_RETURN(const DeviceBuffer from, device.Alloc(size.copy_bytes));
  ASSIGN_OR_RETURN(const DeviceBuffer to, device.Alloc(size.copy_bytes));
  RETURN_IF_ERROR(device.Fill(from.data(), 0x5a, size.copy_bytes, stream));
  ASSIGN_OR_RETURN(const Timing timing, TimeGraph(device, stream, 1, size.repetitions, [&] {
                     return device.Copy(to.data(), from.data(), size.copy_bytes, stream);
                   }));
  ceilings->copy_bytes_per_s = 2.0 * static_cast<double>(size.copy_bytes) / timing.seconds;
  ceilings->copy_spread = timing.spread;
  return absl::OkStatus();
}

absl::Status MeasureMma(Device& device, const CeilingsSize& size, DeviceStream& stream,
                        Ceilings* ceilings) {
  const int blocks = 2 * std::max(device.facts().multiprocessors, 1);
  const size_t count = static_cast<size_t>(blocks) * kMmaThreads;
  ASSIGN_OR_RETURN(const DeviceBuffer out, device.Alloc(count * sizeof(float)));
  const auto launch = [&](int64_t rounds) -> absl::Status {
    const int error = LaunchMmaRate(blocks, rounds, out.as<float>(), stream.native());
    if (error == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("mma.sync: the launch failed: CUDA error ", error));
  };
  const auto sums = [&](int64_t rounds, std::vector<float>* values) -> absl::Status {
    values->resize(count);
    RETURN_IF_ERROR(launch(rounds));
    RETURN_IF_ERROR(device.Copy(values->data(), out.data(), out.bytes(), stream));
    return device.Sync(stream);
  };
  std::vector<float> one, many;
  RETURN_IF_ERROR(sums(1, &one));
  RETURN_IF_ERROR(sums(size.mma_rounds, &many));
  for (size_t i = 0; i < count; ++i) {
    if (many[i] == one[i] * static_cast<float>(size.mma_rounds)) continue;
    return absl::InternalError(absl::StrCat("mma.sync: thread ", i, ": ", size.mma_rounds,
                                            " rounds give ", many[i], ", one gives ", one[i]));
  }
  ASSIGN_OR_RETURN(const Timing timing, TimeGraph(device, stream, size.mma_launches,
                                                  size.repetitions, [&]() -> absl::Status {
                                                    for (int i = 0; i < size.mma_launches; ++i)
                                                      RETURN_IF_ERROR(launch(size.mma_rounds));
                                                    return absl::OkStatus();
                                                  }));
  const double products = static_cast<double>(blocks) * (kMmaThreads / 32) * kMmaChains *
                          static_cast<double>(size.mma_rounds);
  ceilings->mma_sync_flops_per_s = products * kMmaFlopsEach / timing.seconds;
  ceilings->mma_sync_spread = timing.spread;
  return absl::OkStatus();
}

// In +-[1, 2).
std::vector<uint16_t> RandomBf16(size_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<uint16_t> values(count);
  for (size_t i = 0; i < count; i += 4) {
    const uint64_t four = (rng() & 0x807f807f807f807fu) | 0x3f803f803f803f80u;
    std::memcpy(values.data() + i, &four, std::min<size_t>(4, count - i) * sizeof(uint16_t));
  }
  return values;
}

// Some elements against the exact sums.
absl::Status CheckProduct(int size, const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                          const std::vector<uint16_t>& c) {
  std::mt19937 rng(11);
  for (int sample = 0; sample < 64; ++sample) {
    const size_t i = rng() % size, j = rng() % size;
    double exact = 0;
    for (int l = 0; l < size; ++l)
      exact += double{Bf16ToF32(a[i * size + l])} * Bf16ToF32(b[j * size + l]);
    const double got = Bf16ToF32(c[j * size + i]);
    // bf16 rounds by 2^-9; f32 sums of `size` products below 4 by far less than 2^-20 of their
    // size.
    const double bound = std::abs(exact) * 0x1p-8 + 4.0 * size * 0x1p-20;
    if (std::abs(got - exact) <= bound) continue;
    return absl::InternalError(absl::StrCat("cuBLAS: element (", i, ", ", j, ") of the product is ",
                                            got, " and should be ", exact));
  }
  return absl::OkStatus();
}

absl::Status MeasureCublas(Device& device, const CeilingsSize& size, DeviceStream& stream,
                           Cublas& cublas, Ceilings* ceilings) {
  const size_t count = static_cast<size_t>(size.matrix) * size.matrix;
  const std::vector<uint16_t> a = RandomBf16(count, 1), b = RandomBf16(count, 2);
  const size_t bytes = count * sizeof(uint16_t);
  ASSIGN_OR_RETURN(const DeviceBuffer a_there, UploadBytes(device, a.data(), bytes, stream));
  ASSIGN_OR_RETURN(const DeviceBuffer b_there, UploadBytes(device, b.data(), bytes, stream));
  ASSIGN_OR_RETURN(const DeviceBuffer c_there, device.Alloc(bytes));
  RETURN_IF_ERROR(device.Fill(c_there.data(), 0xff, bytes, stream));
  constexpr int kProducts = 4;
  ASSIGN_OR_RETURN(const Timing timing,
                   TimeEnqueued(device, stream, kProducts, size.repetitions, [&]() -> absl::Status {
                     for (int i = 0; i < kProducts; ++i) {
                       RETURN_IF_ERROR(cublas.Product(
                           size.matrix, size.matrix, size.matrix, a_there.as<uint16_t>(),
                           b_there.as<uint16_t>(), c_there.as<uint16_t>(), stream.native()));
                     }
                     return absl::OkStatus();
                   }));
  std::vector<uint16_t> c(count);
  RETURN_IF_ERROR(device.Copy(c.data(), c_there.data(), bytes, stream));
  RETURN_IF_ERROR(device.Sync(stream));
  RETURN_IF_ERROR(CheckProduct(size.matrix, a, b, c));
  const double n = size.matrix;
  ceilings->cublas_flops_per_s = 2 * n * n * n / timing.seconds;
  ceilings->cublas_spread = timing.spread;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Ceilings> MeasureCeilings(Device& device, const CeilingsSize& size,
                                         const std::string& cublas_path) {
  Ceilings ceilings;
  ceilings.device = device.facts().name;
  ceilings.driver = device.facts().driver;
  ceilings.data_sheet_bytes_per_s = static_cast<double>(device.facts().bandwidth_bytes_per_s);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream, device.NewStream());
  RETURN_IF_ERROR(MeasureCopy(device, size, *stream, &ceilings));
  RETURN_IF_ERROR(MeasureMma(device, size, *stream, &ceilings));
  absl::StatusOr<std::unique_ptr<Cublas>> cublas = Cublas::Open(cublas_path);
  if (!cublas.ok()) {
    ceilings.cublas = std::string(cublas.status().message());
    return ceilings;
  }
  RETURN_IF_ERROR(MeasureCublas(device, size, *stream, **cublas, &ceilings));
  return ceilings;
}

std::string CeilingsJson(const Ceilings& c) {
  const nlohmann::ordered_json json = {{"device", c.device},
                                       {"driver", c.driver},
                                       {"copy_bytes_per_s", c.copy_bytes_per_s},
                                       {"copy_spread", c.copy_spread},
                                       {"mma_sync_flops_per_s", c.mma_sync_flops_per_s},
                                       {"mma_sync_spread", c.mma_sync_spread},
                                       {"cublas_flops_per_s", c.cublas_flops_per_s},
                                       {"cublas_spread", c.cublas_spread},
                                       {"cublas", c.cublas},
                                       {"data_sheet_bytes_per_s", c.data_sheet_bytes_per_s}};
  return json.dump(/*indent=*/1) + "\n";
}

absl::StatusOr<Ceilings> ReadCeilings(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(path, " is no JSON object"));
  Ceilings ceilings;
  const std::pair<const char*, double*> numbers[] = {
      {"copy_bytes_per_s", &ceilings.copy_bytes_per_s},
      {"copy_spread", &ceilings.copy_spread},
      {"mma_sync_flops_per_s", &ceilings.mma_sync_flops_per_s},
      {"mma_sync_spread", &ceilings.mma_sync_spread},
      {"cublas_flops_per_s", &ceilings.cublas_flops_per_s},
      {"cublas_spread", &ceilings.cublas_spread},
      {"data_sheet_bytes_per_s", &ceilings.data_sheet_bytes_per_s}};
  for (const auto& [name, value] : numbers) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_number())
      return absl::DataLossError(absl::StrCat(path, " has no number ", name));
    *value = found->get<double>();
  }
  const std::pair<const char*, std::string*> texts[] = {
      {"device", &ceilings.device}, {"driver", &ceilings.driver}, {"cublas", &ceilings.cublas}};
  for (const auto& [name, value] : texts) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_string())
      return absl::DataLossError(absl::StrCat(path, " has no text ", name));
    *value = found->get<std::string>();
  }
  if (!(ceilings.copy_bytes_per_s > 0) || !(ceilings.mma_sync_flops_per_s > 0))
    return absl::DataLossError(absl::StrCat(path, ": a rate is not above 0"));
  return ceilings;
}

}  // namespace bitshard
