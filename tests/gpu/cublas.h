// cuBLAS of the machine that the program runs on: opened at run time, because its library is larger
// than all that this project builds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bitshard {

class Cublas {
 public:
  // `path`: the library's file; "": what the loader finds. NOT_FOUND when there is none or it lacks
  // a function, with the loader's words.
  static absl::StatusOr<std::unique_ptr<Cublas>> Open(const std::string& path);
  ~Cublas();

  // c[j * m + i] = sum over l of a[i * k + l] * b[j * k + l], all bf16 on the device, sums in f32;
  // enqueued on `stream` (DeviceStream::native).
  absl::Status Product(int m, int n, int k, const uint16_t* a, const uint16_t* b, uint16_t* c,
                       void* stream);

 private:
  // Of cublas_v2.h, whose types are pointers and enums: its ABI has been the same since CUDA 11.
  using CreateFn = int (*)(void** handle);
  using DestroyFn = int (*)(void* handle);
  using SetStreamFn = int (*)(void* handle, void* stream);
  using GemmExFn = int (*)(void* handle, int a_transposed, int b_transposed, int m, int n, int k,
                           const void* alpha, const void* a, int a_type, int lda, const void* b,
                           int b_type, int ldb, const void* beta, void* c, int c_type, int ldc,
                           int compute_type, int algorithm);

  Cublas() = default;

  void* handle_ = nullptr;
  DestroyFn destroy_ = nullptr;
  SetStreamFn set_stream_ = nullptr;
  GemmExFn gemm_ex_ = nullptr;
};

}  // namespace bitshard
