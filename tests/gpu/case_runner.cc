#include "tests/gpu/case_runner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/registry/logit_scan.h"
#include "kernels/tensor/synthetic.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {

using Kind = CaseOutput::Kind;

namespace {

constexpr size_t kMostBytes = size_t{1} << 16;
constexpr size_t kPageBytes = size_t{1} << 12;

// FNV-1a of each page.
std::vector<uint8_t> Checksums(const std::vector<uint8_t>& bytes) {
  std::vector<uint8_t> sums;
  for (size_t page = 0; page < bytes.size(); page += kPageBytes) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = page; i < std::min(page + kPageBytes, bytes.size()); ++i)
      sum = (sum ^ bytes[i]) * 0x100000001b3u;
    for (int shift = 0; shift < 64; shift += 8) sums.push_back(static_cast<uint8_t>(sum >> shift));
  }
  return sums;
}

}  // namespace

void CaseRunner::Linear(const LinearCase& c) {
  const int64_t rows = static_cast<int64_t>(c.spec.rows);
  const int64_t cols = static_cast<int64_t>(c.spec.cols);
  const PackedMatrix w = RandomMatrix(c.spec, NextSeed());
  const std::vector<float> values = RandomFloats(static_cast<size_t>(c.m * cols), NextSeed());
  const HostActivations x(values, c.m, cols, c.segment_cols);
  const UploadedMatrix w_there(w);
  const UploadedActivations x_there(x);
  DeviceActivations form = x_there.get();
  const DeviceBuffer records = gpu_.Empty(
      c.a8 ? static_cast<size_t>(c.m * (form.padded_cols / kTileCols)) * kA8RecordBytes : 0);
  if (c.a8) {
    form = {.a8 = records.as<uint8_t>(), .cols = cols, .padded_cols = form.padded_cols};
    form.segment_cols = c.segment_cols;
    const std::string prepare =
        absl::StrCat("prepare a8 ", c.m, "x", cols, " segments of ", c.segment_cols);
    Launch(prepare,
           [&] { return gpu_.kernels().Prepare(x_there.get().x, cols, c.m, form, gpu_.stream()); });
    Keep(prepare, Kind::kBytes, records, records.bytes());
  }

  const bool segmented = c.segment_cols != 0;
  const size_t count = static_cast<size_t>(c.m * rows);
  const DeviceBuffer out = gpu_.Empty(count * (segmented ? sizeof(int64_t) : sizeof(float)));
  const DeviceBuffer poison = gpu_.Upload(std::vector<int64_t>(c.m, 0));
  DeviceLinear member;
  member.w = &w_there.get();
  member.stride = rows;
  member.deterministic = c.deterministic;
  if (segmented) {
    member.sums = out.as<int64_t>();
    member.poison = poison.as<int64_t>();
    member.segments_total = x.segments;
  } else {
    member.y = out.as<float>();
  }
  const auto choice = gpu_.kernels().ChooseLinear(
      c.spec, c.segment_cols, c.a8 ? ActivationMode::kA8 : ActivationMode::kA16);
  CHECK_OK(choice.status());
  std::string name =
      absl::StrCat(choice->kernel, " ", c.spec.Describe(), " ", rows, "x", cols, " m=", c.m);
  if (segmented) absl::StrAppend(&name, " segments of ", c.segment_cols);
  if (!c.deterministic) absl::StrAppend(&name, " any order");
  Launch(name, [&] { return gpu_.kernels().Linear({&member, 1}, form, c.m, gpu_.stream()); });
  if (segmented) {
    Keep(name, Kind::kSums, out, count * sizeof(int64_t));
    return;
  }
  Keep(name, Kind::kFloats, out, count * sizeof(float));
  CaseOutput& kept = outputs_.back();
  // The reference is that of fp16 activations.
  if (!options_.with_reference || c.a8 || !kept.error.empty()) return;
  const auto* const y = reinterpret_cast<const float*>(kept.bytes.data());
  kept.reference_error =
      NormError(w, x, [&](int64_t token, int64_t row) { return y[token * rows + row]; });
  const bool grouped = c.spec.type == PackedSpec::Type::kInt;
  kept.reference_bound = LinearErrorBound(cols, grouped ? c.spec.group_size : cols);
}

void CaseRunner::Attention(const AttentionCase& c) {
  const KvLayout layout = {.type = c.type, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
  const int64_t q_width = int64_t{c.q_heads} * c.head_dim;
  const int64_t kv_width = int64_t{c.kv_heads} * c.head_dim;
  const int64_t longest = *std::max_element(c.contexts.begin(), c.contexts.end());
  const auto sequences = static_cast<int64_t>(c.contexts.size());
  std::vector<int32_t> position, row, newest, newest_row, begin, head;
  std::vector<uint32_t> table;
  for (int s = 0; s < sequences; ++s) {
    begin.push_back(static_cast<int32_t>(table.size()));
    for (int p = 0; p < c.contexts[s]; ++p) {
      if (p % kKvBlockTokens == 0) table.push_back(static_cast<uint32_t>(table.size()));
      position.push_back(p);
      row.push_back(s);
    }
    newest.push_back(c.contexts[s] - 1);
    newest_row.push_back(s);
  }
  for (int h = 0; h < c.q_heads; ++h) head.push_back(h * c.kv_heads / c.q_heads);
  std::reverse(table.begin(), table.end());
  const auto tokens = static_cast<int64_t>(position.size());
  const size_t cache_bytes = table.size() * static_cast<size_t>(layout.block_bytes());

  // The unused end of a last block is never read: zeros, so that all of it can be compared.
  const DeviceBuffer cache = gpu_.Upload(std::vector<uint8_t>(cache_bytes, 0));
  const DeviceBuffer heads = gpu_.Upload(head), begins = gpu_.Upload(begin);
  const DeviceBuffer blocks = gpu_.Upload(table);
  const uint64_t scratch_bytes =
      gpu_.kernels().AttentionScratchBytes(layout, c.q_heads, sequences, longest);
  const DeviceBuffer scratch = gpu_.Upload(std::vector<uint8_t>(scratch_bytes, 0));
  DeviceAttention attention;
  attention.layout = layout;
  attention.q_heads = c.q_heads;
  attention.kv_head_of_q = heads.as<int32_t>();
  attention.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  attention.cache = cache.data();
  attention.scratch = scratch_bytes == 0 ? nullptr : scratch.data();
  attention.max_context = longest;
  attention.deterministic = c.deterministic;

  const std::string shape = absl::StrCat(
      KvTypeName(c.type), " ", c.q_heads, "/", c.kv_heads, " heads of ", c.head_dim, ", ",
      sequences, " sequences up to ", longest, c.deterministic ? "" : " any order");
  const DeviceBuffer k = gpu_.Upload(RandomFloats(tokens * kv_width, NextSeed(), 2.0f));
  const DeviceBuffer v = gpu_.Upload(RandomFloats(tokens * kv_width, NextSeed()));
  const DeviceBuffer positions = gpu_.Upload(position), rows = gpu_.Upload(row);
  DeviceTokens all;
  all.position = positions.as<int32_t>();
  all.row = rows.as<int32_t>();
  all.block_begin = begins.as<int32_t>();
  all.blocks = blocks.as<uint32_t>();
  const std::string append = absl::StrCat("append ", shape);
  Launch(append, [&] {
    return gpu_.kernels().Append(attention, k.as<float>(), v.as<float>(), kv_width, all, tokens,
                                 gpu_.stream());
  });
  Keep(append, Kind::kBytes, cache, cache_bytes);

  const DeviceBuffer q = gpu_.Upload(RandomFloats(sequences * q_width, NextSeed(), 2.0f));
  const DeviceBuffer out = gpu_.Empty(static_cast<size_t>(sequences * q_width) * sizeof(float));
  const DeviceBuffer ends = gpu_.Upload(newest), end_rows = gpu_.Upload(newest_row);
  DeviceTokens last = all;
  last.position = ends.as<int32_t>();
  last.row = end_rows.as<int32_t>();
  const std::string attend = absl::StrCat("attend ", shape);
  Launch(attend, [&] {
    return gpu_.kernels().Attend(attention, q.as<float>(), q_width, out.as<float>(), q_width, last,
                                 sequences, gpu_.stream());
  });
  Keep(attend, Kind::kFloats, out, static_cast<size_t>(sequences * q_width) * sizeof(float));
}

void CaseRunner::Norm(int64_t m, int64_t width) {
  const DeviceBuffer x = gpu_.Upload(RandomFloats(m * width, NextSeed(), 3.0f));
  const DeviceBuffer weight = gpu_.Upload(RandomFloats(width, NextSeed()));
  const DeviceBuffer y = gpu_.Empty(static_cast<size_t>(m * width) * sizeof(float));
  DeviceNorm args;
  args.x = x.as<float>();
  args.weight = weight.as<float>();
  args.epsilon = 1e-6f;
  args.y = y.as<float>();
  args.m = m;
  args.width = width;
  const std::string name = absl::StrCat("norm ", m, "x", width);
  Launch(name, [&] { return gpu_.kernels().Norm(args, gpu_.stream()); });
  Keep(name, Kind::kFloats, y, y.bytes());
}

void CaseRunner::Prepare(int64_t m, int64_t cols, int64_t segment_cols) {
  const DeviceBuffer x = gpu_.Upload(RandomFloats(m * cols, NextSeed(), 3.0f));
  DeviceActivations form{.cols = cols, .padded_cols = (cols + 63) / 64 * 64};
  form.segment_cols = segment_cols;
  const DeviceBuffer half = gpu_.Empty(2 * m * form.padded_cols);
  const DeviceBuffer scale = gpu_.Empty(m * form.segments() * sizeof(float));
  const DeviceBuffer run_sum = gpu_.Empty(m * form.padded_cols / 16 * sizeof(float));
  form.half = half.as<uint16_t>();
  form.scale = scale.as<float>();
  form.run_sum = run_sum.as<float>();
  const std::string name = absl::StrCat("prepare ", m, "x", cols, " segments of ", segment_cols);
  Launch(name, [&] { return gpu_.kernels().Prepare(x.as<float>(), cols, m, form, gpu_.stream()); });
  Keep(name, Kind::kBytes, half, half.bytes());
}

void CaseRunner::Gated(int64_t m, int64_t width, bool gelu) {
  const DeviceBuffer gate = gpu_.Upload(RandomFloats(m * width, NextSeed(), 4.0f));
  const DeviceBuffer up = gpu_.Upload(RandomFloats(m * width, NextSeed()));
  const DeviceBuffer y = gpu_.Empty(static_cast<size_t>(m * width) * sizeof(float));
  DeviceGated args;
  args.gate = gate.as<float>();
  args.up = up.as<float>();
  args.in_stride = width;
  args.gelu = gelu;
  args.y = y.as<float>();
  args.m = m;
  args.width = width;
  const std::string name = absl::StrCat(gelu ? "gelu" : "silu", " ", m, "x", width);
  Launch(name, [&] { return gpu_.kernels().Gated(args, gpu_.stream()); });
  Keep(name, Kind::kFloats, y, y.bytes());
}

void CaseRunner::Sum(int64_t m, int64_t width) {
  std::vector<int64_t> sums;
  for (const float v : RandomFloats(m * width, NextSeed(), 10.0f))
    sums.push_back(static_cast<int64_t>(double{v} * 0x1p32));
  const DeviceBuffer in = gpu_.Upload(sums), x = gpu_.Upload(RandomFloats(m * width, NextSeed()));
  const DeviceBuffer poison = gpu_.Upload(std::vector<int64_t>(m, 0));
  const DeviceBuffer poisoned = gpu_.Upload(std::vector<uint8_t>(m, 0));
  DeviceSum args;
  args.in = in.as<int64_t>();
  args.poison = poison.as<int64_t>();
  args.residual = args.x = x.as<float>();
  args.poisoned = poisoned.as<uint8_t>();
  args.m = m;
  args.width = width;
  const std::string name = absl::StrCat("sum ", m, "x", width);
  Launch(name, [&] { return gpu_.kernels().Sum(args, gpu_.stream()); });
  Keep(name, Kind::kFloats, x, x.bytes());
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
  DeviceTokens tokens;
  tokens.position = positions.as<int32_t>();
  const std::string name =
      absl::StrCat("rotate ", pairing == RopeConfig::Pairing::kHalves ? "halves " : "pairs ", heads,
                   " heads of ", head_dim);
  Launch(name, [&] {
    return gpu_.kernels().Rotate(x.as<float>(), stride, heads, head_dim, rope, tokens, m,
                                 gpu_.stream());
  });
  Keep(name, Kind::kFloats, x, x.bytes());
}

void CaseRunner::Mark() {
  const DeviceBuffer word = gpu_.Upload(std::vector<uint64_t>{0});
  Launch("mark", [&] {
    return gpu_.kernels().Mark(word.as<uint64_t>(), 0x123456789abcdef, gpu_.stream());
  });
  Keep("mark", Kind::kBytes, word, word.bytes());
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

// What the last launch made.
void CaseRunner::Keep(const std::string& name, Kind kind, const DeviceBuffer& buffer,
                      size_t bytes) {
  CaseOutput output;
  output.launch = name;
  output.error = error_;
  output.kind = kind;
  if (error_.empty()) output.bytes = gpu_.Download<uint8_t>(buffer, bytes);
  if (kind == Kind::kBytes && bytes > kMostBytes) output.bytes = Checksums(output.bytes);
  outputs_.push_back(std::move(output));
}

void CaseRunner::Launch(const std::string& name, absl::FunctionRef<absl::Status()> launch) {
  gpu_.Sync();
  if (options_.hooks.before) options_.hooks.before(name);
  const absl::Status launched = launch();
  gpu_.Sync();
  if (options_.hooks.after) options_.hooks.after(name);
  error_ = launched.ok() ? "" : launched.ToString();
}

}  // namespace bitshard
