// f32: IEEE single precision, little-endian.
#include <bit>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/formats/dense_format.h"

namespace bitshard {
namespace {

class F32 final : public DenseFormat {
 public:
  F32() : DenseFormat("f32", PackedSpec::Type::kF32, 4) {}

  void Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
              float* out) const override {
    CHECK_EQ(bytes.size(), rows * cols * 4);
    for (uint64_t i = 0; i < rows * cols; ++i) {
      uint32_t stored;
      std::memcpy(&stored, bytes.data() + 4 * i, 4);
      out[i] = std::bit_cast<float>(stored);
    }
  }
};

const RegisterFormat kRegistered(new F32);

}  // namespace
}  // namespace bitshard
