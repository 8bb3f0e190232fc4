#include "tests/gpu/cublas.h"

#include <dlfcn.h>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// cublas_v2.h, library_types.h
constexpr int kNotTransposed = 0, kTransposed = 1;
constexpr int kBf16 = 14;        // CUDA_R_16BF
constexpr int kComputeF32 = 68;  // CUBLAS_COMPUTE_32F
constexpr int kDefaultAlgorithm = -1;

// Never closed: its threads and the driver's may live on.
absl::StatusOr<void*> OpenLibrary(const std::string& path) {
  std::vector<std::string> names = {path};
  if (path.empty()) names = {"libcublas.so.13", "libcublas.so.12"};
  // The packages of Python keep what it needs beside it, where the loader may not look.
  if (const size_t slash = path.rfind("/libcublas.so"); slash != std::string::npos) {
    const std::string version = path.substr(slash + std::string("/libcublas.so").size());
    dlopen((path.substr(0, slash) + "/libcublasLt.so" + version).c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
  std::string why;
  for (const std::string& name : names) {
    void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    absl::StrAppend(&why, why.empty() ? "" : "; ", dlerror());
  }
  return absl::NotFoundError(absl::StrCat("no cuBLAS: ", why));
}

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no cuBLAS: the library has no ", name));
}

absl::Status Checked(const char* call, int status) {
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": cuBLAS status ", status));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cublas>> Cublas::Open(const std::string& path) {
  ASSIGN_OR_RETURN(void* const library, OpenLibrary(path));
  std::unique_ptr<Cublas> made(new Cublas);
  CreateFn create = nullptr;
  DestroyFn destroy = nullptr;
  RETURN_IF_ERROR(Find(library, "cublasCreate_v2", &create));
  RETURN_IF_ERROR(Find(library, "cublasDestroy_v2", &destroy));
  RETURN_IF_ERROR(Find(library, "cublasSetStream_v2", &made->set_stream_));
  RETURN_IF_ERROR(Find(library, "cublasGemmEx", &made->gemm_ex_));
  RETURN_IF_ERROR(Checked("cublasCreate", create(&made->handle_)));
  made->destroy_ = destroy;
  return made;
}

Cublas::~Cublas() {
  if (destroy_ != nullptr) destroy_(handle_);
}

absl::Status Cublas::Product(int m, int n, int k, const uint16_t* a, const uint16_t* b, uint16_t* c,
                             void* stream) {
  const float one = 1, zero = 0;
  RETURN_IF_ERROR(Checked("cublasSetStream", set_stream_(handle_, stream)));
  return Checked("cublasGemmEx",
                 gemm_ex_(handle_, kTransposed, kNotTransposed, m, n, k, &one, a, kBf16, k, b,
                          kBf16, k, &zero, c, kBf16, m, kComputeF32, kDefaultAlgorithm));
}

}  // namespace bitshard
