// A libcublas whose products run on the host, at once, over memory of an emulated device. For
// cublas_test.cc. With BITSHARD_FAKE_CUBLAS_WRONG set, one product in each column is left out.
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

float FromBf16(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}
uint16_t ToBf16(float value) {  // to nearest even; numbers only
  uint32_t word;
  std::memcpy(&word, &value, sizeof(word));
  return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

constexpr int kInvalidValue = 7;  // CUBLAS_STATUS_INVALID_VALUE
int the_handle;

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) {
  *handle = &the_handle;
  return 0;
}
int cublasDestroy_v2(void* handle) { return handle == &the_handle ? 0 : kInvalidValue; }
int cublasSetStream_v2(void* handle, void* /*stream*/) {
  return handle == &the_handle ? 0 : kInvalidValue;
}

int cublasGemmEx(void* handle, int a_transposed, int b_transposed, int m, int n, int k,
                 const void* alpha, const void* a, int a_type, int lda, const void* b, int b_type,
                 int ldb, const void* beta, void* c, int c_type, int ldc, int compute_type,
                 int /*algorithm*/) {
  if (handle != &the_handle || a_transposed != 1 || b_transposed != 0 || a_type != 14 ||
      b_type != 14 || c_type != 14 || compute_type != 68 || lda < k || ldb < k || ldc < m)
    return kInvalidValue;
  if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0)
    return kInvalidValue;
  const int skipped = std::getenv("BITSHARD_FAKE_CUBLAS_WRONG") != nullptr ? 1 : 0;
  const auto* const x = static_cast<const uint16_t*>(a);
  const auto* const y = static_cast<const uint16_t*>(b);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      float sum = 0;
      for (int l = skipped; l < k; ++l)
        sum += FromBf16(x[int64_t{i} * lda + l]) * FromBf16(y[int64_t{j} * ldb + l]);
      static_cast<uint16_t*>(c)[int64_t{j} * ldc + i] = ToBf16(sum);
    }
  }
  return 0;
}

}  // extern "C"
