// Tensor-core products of a warpgroup (four warps that follow each other, the first a multiple of
// four): d += a * b for 64 rows x 128 columns x 16 k, f16 in f32, sm_90a alone. Warp w of the group
// has rows 16 w..16 w + 15: a and each d[block] are MmaF16's fragments (ptx/mma.cuh) of those rows
// and of columns 8 block.. . b lies in shared memory, 64 k of each column side by side (128 bytes),
// 128 columns, the start aligned to 1024 bytes, in the 128-byte swizzle: 16 bytes number c of
// column n are at 128 n + 16 (c ^ n % 8).
//
// Multiply only starts the work. Until Wait returns, d and a are the hardware's and b must not be
// written. Writes to b become visible to it by PublishShared() of the writer, then a barrier.
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions".
//
// Emulated: the product is made in Wait, the latest legal moment, with the sums of MmaF16; a is
// copied when it starts. That the four warps come together, and PublishShared, are not checked.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/mma.cuh"

namespace bitshard::cuda {

constexpr int kWgmmaColumns = 128;
constexpr int kWgmmaBlocks = kWgmmaColumns / 8;
constexpr int kWgmmaTileK = 64;
constexpr int kWgmmaTileBytes = kWgmmaColumns * kWgmmaTileK * 2;

// Where 16 bytes number `chunk` of a column lie in b, in bytes.
__device__ __forceinline__ int WgmmaPlace(int column, int chunk) {
  return column * 128 + ((chunk ^ column % 8) * 16);
}

#if defined(__CUDACC__)

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BITSHARD_HAS_WGMMA 1
#endif

class WgmmaF16 {
 public:
  // d is overwritten where `fresh`, else added to. k: 0..3, which 16 of b's 64.
  __device__ __forceinline__ void Multiply(float (&d)[kWgmmaBlocks][4], const uint32_t (&a)[4],
                                           const void* b, int k, bool fresh) {
#if defined(BITSHARD_HAS_WGMMA)
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(b)) + 32u * k;
    // Start in units of 16 bytes; 1024 bytes from 8 columns to the next; the 128-byte swizzle.
    const uint64_t descriptor = (address & 0x3ffffu) >> 4 | uint64_t{1} << 16 |
                                uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
          "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
          "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
          "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
          "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
          "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),
          "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]),
          "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]),
          "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]),
          "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
          "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]),
          "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor),
          "r"(static_cast<int>(!fresh)));
#else
    __trap();
#endif
  }
  // Before the first Multiply after d or a were written.
  __device__ __forceinline__ void Begin() {
#if defined(BITSHARD_HAS_WGMMA)
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }
  // After the last one.
  __device__ __forceinline__ void End() {
#if defined(BITSHARD_HAS_WGMMA)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
  }
  // Until all that End() closed is done. d: all that they add to.
  __device__ __forceinline__ void Wait(float (&d)[kWgmmaBlocks][4]) {
#if defined(BITSHARD_HAS_WGMMA)
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    // Or the compiler could use the values that Multiply "returned" before this.
#pragma unroll
    for (int i = 0; i < 4 * kWgmmaBlocks; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
#endif
  }
};

// The thread's writes to shared memory, for the tensor cores after the next barrier.
__device__ __forceinline__ void PublishShared() {
#if defined(BITSHARD_HAS_WGMMA)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#else

class WgmmaF16 {
 public:
  void Multiply(float (&d)[kWgmmaBlocks][4], const uint32_t (&a)[4], const void* b, int k,
                bool fresh) {
    if (started_ == kMostStarted) __builtin_trap();
    Product& product = products_[started_++];
    product = {d, {a[0], a[1], a[2], a[3]}, static_cast<const uint8_t*>(b), k, fresh};
  }
  void Begin() {}
  void End() { closed_ = started_; }
  void Wait(float (&)[kWgmmaBlocks][4], EMU_WHERE) {
    for (int i = 0; i < closed_; ++i) Make(products_[i], where);
    // What no End closed would stay undone on a GPU too.
    for (int i = closed_; i < started_; ++i) products_[i - closed_] = products_[i];
    started_ -= closed_;
    closed_ = 0;
  }

 private:
  struct Product {
    float (*d)[4];
    uint32_t a[4];
    const uint8_t* b;
    int k;
    bool fresh;
  };
  static constexpr int kMostStarted = 16;

  static void Make(const Product& product, const emu::Where& where) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int block = 0; block < kWgmmaBlocks; ++block) {
      const int column = 8 * block + lane / 4;
      uint32_t b[2];
      for (int half = 0; half < 2; ++half) {
        b[half] = *reinterpret_cast<const uint32_t*>(
            product.b + WgmmaPlace(column, 2 * product.k + half) + lane % 4 * 4);
      }
      float(&d)[4] = product.d[block];
      if (product.fresh) d[0] = d[1] = d[2] = d[3] = 0;
      MmaF16(d, product.a, b, where);
    }
  }

  Product products_[kMostStarted];
  int started_ = 0, closed_ = 0;
};

__forceinline__ void PublishShared() {}

#endif

}  // namespace bitshard::cuda
