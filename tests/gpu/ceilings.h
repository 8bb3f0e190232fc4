// What the device itself can do, measured: the rates of which all other phases print shares.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "kernels/tensor/device.h"

namespace bitshard {

struct Ceilings {
  std::string device;                 // "NVIDIA H200"
  std::string driver;                 // "13.0"
  double copy_bytes_per_s = 0;        // of device-to-device copies, read + written
  double mma_sync_flops_per_s = 0;    // of bf16 mma.sync from registers
  double cublas_flops_per_s = 0;      // of a square bf16 product; 0: no cuBLAS
  std::string cublas = "";            // why there is none
  double data_sheet_bytes_per_s = 0;  // 0: unknown
  double copy_spread = 0, mma_sync_spread = 0, cublas_spread = 0;

  // The matrix rate that products are held to.
  double matrix_flops_per_s() const {
    return cublas_flops_per_s > 0 ? cublas_flops_per_s : mma_sync_flops_per_s;
  }
};

struct CeilingsSize {
  uint64_t copy_bytes = uint64_t{2} << 30;  // 4 GiB read and written
  int matrix = 8192;                        // rows, columns and depth of cuBLAS's product
  int mma_launches = 32;                    // of two blocks a multiprocessor, in a graph
  int64_t mma_rounds = 512;                 // kMmaExactRounds at most
  int repetitions = 9;
};

// `cublas_path`: as Cublas::Open. No cuBLAS is no error, wrong products are: INTERNAL says which
// element.
absl::StatusOr<Ceilings> MeasureCeilings(Device& device, const CeilingsSize& size,
                                         const std::string& cublas_path);

// One JSON object with the fields' names, and back. DATA_LOSS names what is missing.
std::string CeilingsJson(const Ceilings& ceilings);
absl::StatusOr<Ceilings> ReadCeilings(const std::string& path);

}  // namespace bitshard
