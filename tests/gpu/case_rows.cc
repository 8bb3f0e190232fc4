// The launches on rows: norms, gates, sums, prepared forms, rotations, logits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/registry/logit_scan.h"
#include "kernels/tensor/synthetic.h"
#include "tests/gpu/case_runner.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {

using Kind = CaseOutput::Kind;

namespace {

std::string Text(const CaseForm& form) {
  std::string text;
  if (form.kind == CaseForm::Kind::kHalf) text = " f16";
  if (form.kind == CaseForm::Kind::kA8) text = " a8";
  if (form.segment_cols != 0) absl::StrAppend(&text, " segments of ", form.segment_cols);
  return text;
}

// Memory for a prepared form.
class FormOnDevice {
 public:
  FormOnDevice(int64_t m, int64_t cols, const CaseForm& form)
      : m_(m), a8_(form.kind == CaseForm::Kind::kA8) {
    form_.cols = cols;
    form_.padded_cols = (cols + kTileCols - 1) / kTileCols * kTileCols;
    form_.segment_cols = form.segment_cols;
    TestGpu& gpu = TestGpu::Get();
    if (a8_) {
      values_ = gpu.Empty(m * form_.padded_cols / kTileCols * kA8RecordBytes);
      form_.a8 = values_.as<uint8_t>();
      return;
    }
    values_ = gpu.Empty(m * form_.padded_cols * sizeof(uint16_t));
    scale_ = gpu.Empty(m * form_.segments() * sizeof(float));
    run_sum_ = gpu.Empty(m * form_.padded_cols / kLaneCols * sizeof(float));
    form_.half = values_.as<uint16_t>();
    form_.scale = scale_.as<float>();
    form_.run_sum = run_sum_.as<float>();
  }
  const DeviceActivations& get() const { return form_; }
  const DeviceBuffer& values() const { return values_; }

  // The numbers that it stands for, in its own order: those of another device are near where the
  // rows themselves are near.
  std::vector<float> Numbers() const { return a8_ ? NumbersOfA8() : NumbersOfHalf(); }

 private:
  // REQUIRES: segments of whole runs.
  std::vector<float> NumbersOfHalf() const {
    const size_t count = m_ * form_.padded_cols;
    const auto half = TestGpu::Get().Download<uint16_t>(values_, count);
    const auto scale = TestGpu::Get().Download<float>(scale_, m_ * form_.segments());
    const int64_t width = form_.segments() == 1 ? form_.padded_cols : form_.segment_cols;
    std::vector<float> numbers(count);
    for (size_t i = 0; i < count; ++i) {
      const auto row = static_cast<int64_t>(i) / form_.padded_cols;
      const int64_t run = static_cast<int64_t>(i) % form_.padded_cols / kLaneCols;
      const int64_t segment = std::min(run * kLaneCols / width, form_.segments() - 1);
      numbers[i] = F16ToF32(half[i]) * scale[row * form_.segments() + segment];
    }
    return numbers;
  }
  std::vector<float> NumbersOfA8() const {
    const auto records = TestGpu::Get().Download<uint8_t>(values_, values_.bytes());
    constexpr size_t kScaleOfRun[] = {64, 80, 68, 84};
    std::vector<float> numbers;
    for (size_t at = 0; at < records.size(); at += kA8RecordBytes) {
      for (size_t i = 0; i < kTileCols; ++i) {
        float scale;
        std::memcpy(&scale, records.data() + at + kScaleOfRun[i / kLaneCols], sizeof(scale));
        numbers.push_back(scale * static_cast<float>(static_cast<int8_t>(records[at + i])));
      }
    }
    return numbers;
  }

  const int64_t m_;
  const bool a8_;
  DeviceActivations form_;
  DeviceBuffer values_, scale_, run_sum_;
};

// Int64 sums of ranks.
class SumsOnDevice {
 public:
  SumsOnDevice(int64_t m, int64_t width, uint32_t seed) : m_(m), width_(width) {
    std::vector<int64_t> sums;
    for (const float v : RandomFloats(m * width, seed, 10.0f))
      sums.push_back(static_cast<int64_t>(double{v} * 0x1p32));
    TestGpu& gpu = TestGpu::Get();
    in_ = gpu.Upload(sums);
    poison_ = gpu.Upload(std::vector<int64_t>(m, 0));
    poisoned_ = gpu.Upload(std::vector<uint8_t>(m, 0));
  }
  // Added to x.
  DeviceSum Into(float* x) const {
    DeviceSum args;
    args.in = in_.as<int64_t>();
    args.poison = poison_.as<int64_t>();
    args.residual = args.x = x;
    args.poisoned = poisoned_.as<uint8_t>();
    args.m = m_;
    args.width = width_;
    return args;
  }

 private:
  const int64_t m_, width_;
  DeviceBuffer in_, poison_, poisoned_;
};

}  // namespace

void CaseRunner::Norm(int64_t m, int64_t width, const CaseForm& form, bool sum) {
  const DeviceBuffer x = gpu_.Upload(RandomFloats(m * width, NextSeed(), 3.0f));
  const DeviceBuffer weight = gpu_.Upload(RandomFloats(width, NextSeed()));
  const DeviceBuffer y = gpu_.Empty(static_cast<size_t>(m * width) * sizeof(float));
  const SumsOnDevice sums(m, width, NextSeed());
  const FormOnDevice prepared(m, width, form);
  const DeviceSum first = sums.Into(x.as<float>());
  DeviceNorm args;
  args.x = x.as<float>();
  args.weight = weight.as<float>();
  args.epsilon = 1e-6f;
  if (form.kind == CaseForm::Kind::kNone) {
    args.y = y.as<float>();
  } else {
    args.prepared = &prepared.get();
  }
  args.m = m;
  args.width = width;
  if (sum) args.sum = &first;
  const std::string name = absl::StrCat(sum ? "sum and norm " : "norm ", m, "x", width, Text(form));
  Launch(name, [&] { return gpu_.kernels().Norm(args, gpu_.stream()); });
  if (args.prepared == nullptr) {
    Keep(name, Kind::kFloats, y, y.bytes());
  } else {
    KeepNumbers(name, [&] { return prepared.Numbers(); });
  }
}

void CaseRunner::Prepare(int64_t m, int64_t cols, int64_t segment_cols) {
  const DeviceBuffer x = gpu_.Upload(RandomFloats(m * cols, NextSeed(), 3.0f));
  const FormOnDevice prepared(m, cols, {CaseForm::Kind::kHalf, segment_cols});
  const std::string name = absl::StrCat("prepare ", m, "x", cols, " segments of ", segment_cols);
  Launch(name, [&] {
    return gpu_.kernels().Prepare(x.as<float>(), cols, m, prepared.get(), gpu_.stream());
  });
  Keep(name, Kind::kBytes, prepared.values(), prepared.values().bytes());
}

void CaseRunner::Gated(int64_t m, int64_t width, bool gelu, const CaseForm& form) {
  const DeviceBuffer gate = gpu_.Upload(RandomFloats(m * width, NextSeed(), 4.0f));
  const DeviceBuffer up = gpu_.Upload(RandomFloats(m * width, NextSeed()));
  const DeviceBuffer y = gpu_.Empty(static_cast<size_t>(m * width) * sizeof(float));
  const FormOnDevice prepared(m, width, form);
  DeviceGated args;
  args.gate = gate.as<float>();
  args.up = up.as<float>();
  args.in_stride = width;
  args.gelu = gelu;
  if (form.kind == CaseForm::Kind::kNone) {
    args.y = y.as<float>();
  } else {
    args.prepared = &prepared.get();
  }
  args.m = m;
  args.width = width;
  const std::string name = absl::StrCat(gelu ? "gelu" : "silu", " ", m, "x", width, Text(form));
  Launch(name, [&] { return gpu_.kernels().Gated(args, gpu_.stream()); });
  if (args.prepared == nullptr) {
    Keep(name, Kind::kFloats, y, y.bytes());
  } else {
    KeepNumbers(name, [&] { return prepared.Numbers(); });
  }
}

void CaseRunner::Sum(int64_t m, int64_t width, bool progress) {
  const SumsOnDevice sums(m, width, NextSeed());
  const DeviceBuffer x = gpu_.Upload(RandomFloats(m * width, NextSeed()));
  const DeviceBuffer word = gpu_.Upload(std::vector<uint64_t>{0});
  DeviceSum args = sums.Into(x.as<float>());
  if (progress) args.progress = word.as<uint64_t>();
  args.mark = 0x123456789abcdef;
  const std::string name = absl::StrCat(progress ? "sum and progress " : "sum ", m, "x", width);
  Launch(name, [&] { return gpu_.kernels().Sum(args, gpu_.stream()); });
  if (progress) {
    Keep(name, Kind::kBytes, word, word.bytes());
  } else {
    Keep(name, Kind::kFloats, x, x.bytes());
  }
}

void CaseRunner::Add(int64_t m, int64_t width) {
  const DeviceBuffer a = gpu_.Upload(RandomFloats(m * width, NextSeed()));
  const DeviceBuffer b = gpu_.Upload(RandomFloats(m * width, NextSeed()));
  const DeviceBuffer x = gpu_.Empty(a.bytes());
  const std::string name = absl::StrCat("add ", m, "x", width);
  Launch(name, [&] {
    return gpu_.kernels().Add(a.as<float>(), b.as<float>(), x.as<float>(), m, width, gpu_.stream());
  });
  Keep(name, Kind::kFloats, x, x.bytes());
}

void CaseRunner::GatherRows(int64_t rows, int64_t width) {
  const DeviceBuffer x = gpu_.Upload(RandomFloats(rows * width, NextSeed()));
  const DeviceBuffer index = gpu_.Upload(std::vector<int32_t>{2, 0, static_cast<int>(rows) - 1});
  const DeviceBuffer out = gpu_.Empty(static_cast<size_t>(3 * width) * sizeof(float));
  const std::string name = absl::StrCat("gather_rows ", rows, "x", width);
  Launch(name, [&] {
    return gpu_.kernels().GatherRows(x.as<float>(), index.as<int32_t>(), 3, width, out.as<float>(),
                                     gpu_.stream());
  });
  Keep(name, Kind::kFloats, out, out.bytes());
}

void CaseRunner::Gather(const PackedSpec& spec) {
  const UploadedMatrix w(RandomMatrix(spec, NextSeed()));
  const std::vector<int32_t> tokens = {100, 103, 5, 100};
  const auto m = static_cast<int64_t>(tokens.size());
  const DeviceBuffer on_device = gpu_.Upload(tokens);
  const DeviceBuffer out = gpu_.Empty(m * spec.cols * sizeof(int64_t));
  const std::string name = absl::StrCat("gather ", spec.Describe(), " ", spec.rows, "x", spec.cols);
  Launch(name, [&] {
    return gpu_.kernels().Gather(w.get(), 100, on_device.as<int32_t>(), m, out.as<int64_t>(),
                                 gpu_.stream());
  });
  Keep(name, Kind::kBytes, out, out.bytes());
}

void CaseRunner::Rotate(int heads, int head_dim, RopeConfig::Pairing pairing) {
  const std::vector<int32_t> position = {0, 7, -1, 70000};
  const auto m = static_cast<int64_t>(position.size());
  std::vector<double> inv_freq;
  for (int i = 0; i < head_dim / 2; ++i) inv_freq.push_back(std::pow(10000.0, -2.0 * i / head_dim));
  const int64_t stride = int64_t{heads} * head_dim;
  const DeviceBuffer x = gpu_.Upload(RandomFloats(m * stride, NextSeed()));
  const DeviceBuffer positions = gpu_.Upload(position), freq = gpu_.Upload(inv_freq);
  DeviceRope rope;
  rope.inv_freq = freq.as<double>();
  rope.rotary_dim = head_dim;
  rope.pairing = pairing;
  // Of padding nothing is written.
  const DeviceBuffer cos_sin =
      gpu_.Upload(std::vector<float>(static_cast<size_t>(m * head_dim), 0.0f));
  rope.cos_sin = cos_sin.as<float>();
  DeviceTokens tokens;
  tokens.position = positions.as<int32_t>();
  const std::string name =
      absl::StrCat("rotate ", pairing == RopeConfig::Pairing::kHalves ? "halves " : "pairs ", heads,
                   " heads of ", head_dim);
  const std::string angles = absl::StrCat("angles for ", name);
  Launch(angles, [&] { return gpu_.kernels().Angles(rope, tokens, m, gpu_.stream()); });
  Keep(angles, Kind::kFloats, cos_sin, cos_sin.bytes());
  Launch(name, [&] {
    return gpu_.kernels().Rotate(x.as<float>(), stride, heads, head_dim, rope, tokens, m,
                                 gpu_.stream());
  });
  Keep(name, Kind::kFloats, x, x.bytes());
}

void CaseRunner::Scan(int64_t m, int64_t count) {
  const DeviceBuffer logits = gpu_.Upload(RandomFloats(m * count, NextSeed(), 4.0f));
  std::vector<LogitScanRequest> requests(m);
  std::vector<LogitSumRequest> sum_requests(m);
  for (int64_t row = 0; row < m; ++row) {
    requests[row].candidates = static_cast<uint32_t>(20 * row);
    requests[row].draws = 1;
    requests[row].seed = NextSeed();
    sum_requests[row] = {.raw = 1, .mass = 1, .max = 16, .temperature = 0.8f, .floor = -4};
  }
  const uint32_t most = requests.back().candidates;
  const DeviceBuffer asked = gpu_.Upload(requests), asked_sums = gpu_.Upload(sum_requests);
  const DeviceBuffer scratch = gpu_.Empty(gpu_.kernels().ScanScratchBytes(m, count));
  const DeviceBuffer scans = gpu_.Empty(m * sizeof(LogitScan));
  const DeviceBuffer keys = gpu_.Upload(std::vector<uint64_t>(m * most, 0));
  const DeviceBuffer sums = gpu_.Upload(std::vector<uint64_t>(2 * m, 0));
  const std::string scan = absl::StrCat("scan ", m, "x", count);
  Launch(scan, [&] {
    DeviceScan args;
    args.logits = logits.as<float>();
    args.stride = args.count = count;
    args.m = m;
    args.begin = 128;
    args.most = most;
    args.requests = asked.as<LogitScanRequest>();
    args.scratch = scratch.data();
    args.scans = scans.as<LogitScan>();
    args.keys = keys.as<uint64_t>();
    return gpu_.kernels().Scan(args, gpu_.stream());
  });
  Keep(scan, Kind::kBytes, keys, keys.bytes());
  const std::string mass = absl::StrCat("sum masses ", m, "x", count);
  Launch(mass, [&] {
    DeviceMassSums args;
    args.logits = logits.as<float>();
    args.stride = args.count = count;
    args.m = m;
    args.requests = asked_sums.as<LogitSumRequest>();
    args.sums = sums.as<LogitSums>();
    return gpu_.kernels().SumMasses(args, gpu_.stream());
  });
  Keep(mass, Kind::kBytes, sums, sums.bytes());
}

void CaseRunner::Synthetic(const PackedSpec& spec) {
  const auto layout = LayoutOnDevice(spec);
  CHECK_OK(layout.status());
  const SyntheticSource source = SyntheticSourceOf(3, "a weight", spec, spec.cols, 0, 0);
  // What lies between the parts is nobody's.
  const DeviceBuffer blob = gpu_.Upload(std::vector<uint8_t>(layout->bytes, 0));
  const std::string name =
      absl::StrCat("synthetic ", spec.Describe(), " ", spec.rows, "x", spec.cols);
  Launch(name, [&] {
    return gpu_.kernels().MakeSynthetic(spec, *layout, source, blob.data(), gpu_.stream());
  });
  Keep(name, Kind::kBytes, blob, blob.bytes());
}

}  // namespace bitshard
