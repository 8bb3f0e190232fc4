// f16: IEEE half precision, little-endian.
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/formats/dense_format.h"

namespace bitshard {
namespace {

class F16 final : public DenseFormat {
 public:
  F16() : DenseFormat("f16", PackedSpec::Type::kF16, 2) {}

  void Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
              float* out) const override {
    CHECK_EQ(bytes.size(), rows * cols * 2);
    for (uint64_t i = 0; i < rows * cols; ++i) {
      uint16_t stored;
      std::memcpy(&stored, bytes.data() + 2 * i, 2);
      out[i] = F16ToF32(stored);
    }
  }
};

const RegisterFormat kRegistered(new F16);

}  // namespace
}  // namespace bitshard
