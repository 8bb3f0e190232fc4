#include "tests/gpu/case_runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/registry/device_kernels.h"
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

// The angles of these positions, made by the host: [positions][rotary_dim / 2]{cos, sin}.
std::vector<float> CosSinOf(const std::vector<int32_t>& positions, int rotary_dim) {
  RopeConfig config;
  config.head_dim = config.rotary_dim = rotary_dim;
  config.max_positions = *std::max_element(positions.begin(), positions.end()) + 1;
  const auto table = RopeTable::Create(config);
  CHECK_OK(table.status());
  const auto half = static_cast<size_t>(rotary_dim) / 2;
  std::vector<float> cos(half), sin(half), all;
  for (const int32_t position : positions) {
    table->CosSin(position, cos.data(), sin.data());
    for (size_t i = 0; i < half; ++i) all.insert(all.end(), {cos[i], sin[i]});
  }
  return all;
}

}  // namespace

void CaseRunner::Linear(const LinearCase& c) {
  const int64_t rows = static_cast<int64_t>(c.spec.rows);
  const int64_t cols = static_cast<int64_t>(c.spec.cols);
  PackedSpec different = c.spec;
  if (c.different_rows != 0) different.rows = std::min(c.spec.rows, uint64_t(c.different_rows));
  const PackedMatrix w = RandomMatrix(different, NextSeed());
  const std::vector<float> values = RandomFloats(static_cast<size_t>(c.m * cols), NextSeed());
  const HostActivations x(values, c.m, cols, c.segment_cols);
  const UploadedMatrix w_there(w, rows);
  const UploadedActivations x_there(x);
  DeviceActivations form = x_there.get();
  const DeviceBuffer records = gpu_.Empty(
      c.a8 ? static_cast<size_t>(c.m * (form.padded_cols / kTileCols)) * kA8RecordBytes : 0);
  if (c.a8) {
    form = {.a8 = records.as<uint8_t>(), .cols = cols, .padded_cols = form.padded_cols};
    form.segment_cols = c.segment_cols;
    const std::string prepare = absl::StrCat("prepare a8 ", c.m, "x", cols, " segments of ",
                                             c.segment_cols, " for ", c.spec.Describe());
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
  // The reference is that of fp16 activations and of sums in f32.
  if (!options_.with_reference || c.a8 || !c.deterministic || !kept.error.empty()) return;
  const auto* const y = reinterpret_cast<const float*>(kept.bytes.data());
  for (int64_t i = 0; i < c.m * rows; ++i) {
    const int64_t row = i % rows, same = i - row + row % w.rows();
    if (SameBits(y[i], y[same])) continue;
    kept.error = absl::StrCat("token ", i / rows, ": row ", row, " has the weights of row ",
                              row % w.rows(), " and gives ", y[i], " in place of ", y[same]);
    return;
  }
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
      gpu_.kernels().AttentionScratchBytes(layout, c.q_heads, tokens, longest);
  const DeviceBuffer scratch = gpu_.Empty(scratch_bytes);
  DeviceAttention attention;
  attention.layout = layout;
  attention.q_heads = c.q_heads;
  attention.kv_head_of_q = heads.as<int32_t>();
  attention.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  attention.cache = cache.data();
  attention.scratch = scratch.data();
  attention.scratch_bytes = scratch_bytes;
  attention.max_context = longest;
  attention.deterministic = c.deterministic;

  const std::string shape =
      absl::StrCat(KvTypeName(c.type), " ", c.q_heads, "/", c.kv_heads, " heads of ", c.head_dim,
                   ", ", sequences, " sequences up to ", longest, c.all_attend ? ", all of it" : "",
                   c.deterministic ? "" : " any order");
  const DeviceBuffer k = gpu_.Upload(RandomFloats(tokens * kv_width, NextSeed(), 2.0f));
  const DeviceBuffer v = gpu_.Upload(RandomFloats(tokens * kv_width, NextSeed()));
  const DeviceBuffer positions = gpu_.Upload(position), rows = gpu_.Upload(row);
  DeviceTokens all;
  all.position = positions.as<int32_t>();
  all.row = rows.as<int32_t>();
  all.block_begin = begins.as<int32_t>();
  all.blocks = blocks.as<uint32_t>();
  DeviceAppend append;
  append.k = k.as<float>();
  append.v = v.as<float>();
  append.stride = kv_width;
  DeviceBuffer queries, cos_sin;
  DeviceRope rope;
  if (c.rotary_dim > 0) {
    queries = gpu_.Upload(RandomFloats(tokens * q_width, NextSeed()));
    cos_sin = gpu_.Upload(CosSinOf(position, c.rotary_dim));
    rope.rotary_dim = c.rotary_dim;
    rope.cos_sin = cos_sin.as<float>();
    append.rope = &rope;
    append.q = queries.as<float>();
    append.q_stride = q_width;
  }
  const std::string store =
      absl::StrCat(c.rotary_dim > 0 ? "rotate and append " : "append ", shape);
  Launch(store,
         [&] { return gpu_.kernels().Append(attention, append, all, tokens, gpu_.stream()); });
  Keep(store, Kind::kBytes, cache, cache_bytes);

  const int64_t m = c.all_attend ? tokens : sequences;
  const DeviceBuffer q = gpu_.Upload(RandomFloats(m * q_width, NextSeed(), 2.0f));
  const DeviceBuffer out = gpu_.Empty(static_cast<size_t>(m * q_width) * sizeof(float));
  const DeviceBuffer ends = gpu_.Upload(newest), end_rows = gpu_.Upload(newest_row);
  DeviceTokens asking = all;
  if (!c.all_attend) {
    asking.position = ends.as<int32_t>();
    asking.row = end_rows.as<int32_t>();
  }
  const std::string attend = absl::StrCat("attend ", shape);
  Launch(attend, [&] {
    return gpu_.kernels().Attend(attention, q.as<float>(), q_width, out.as<float>(), q_width,
                                 asking, m, gpu_.stream());
  });
  Keep(attend, Kind::kFloats, out, static_cast<size_t>(m * q_width) * sizeof(float));
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

void CaseRunner::KeepNumbers(const std::string& name,
                             absl::FunctionRef<std::vector<float>()> numbers) {
  CaseOutput output;
  output.launch = name;
  output.error = error_;
  output.kind = Kind::kFloats;
  if (error_.empty()) {
    const std::vector<float> values = numbers();
    output.bytes.resize(values.size() * sizeof(float));
    std::memcpy(output.bytes.data(), values.data(), output.bytes.size());
  }
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
