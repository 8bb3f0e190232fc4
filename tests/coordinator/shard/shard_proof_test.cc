// The proof that sharding loses nothing: for real checkpoints of both containers and every format,
// at 1 to 4 ranks, even and uneven, what the ranks read and decode, put together, is the whole
// matrix, bit for bit; and every byte of every tensor is read by exactly the ranks that need it.
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "kernels/formats/format.h"
#include "tests/coordinator/checkpoint/made_ct.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/coordinator/shard/made_gguf.h"
#include "tests/support/stored_weight.h"
#include "tests/support/test_paths.h"

namespace bitshard {
namespace {

using internal::RankPlan;
using internal::TensorLoad;

struct Opened {
  Checkpoint checkpoint;
  internal::ModelGraph graph;
  std::vector<std::string> files;  // whole contents
};

Opened Open(const std::string& path) {
  auto checkpoint = OpenCheckpoint(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  auto graph = BuildModelGraph(checkpoint->config, checkpoint->index);
  EXPECT_TRUE(graph.ok()) << graph.status();
  Opened opened{.checkpoint = *std::move(checkpoint), .graph = *std::move(graph), .files = {}};
  for (const CheckpointFile& file : opened.checkpoint.index.files())
    opened.files.push_back(ReadFile(file.path));
  return opened;
}

// The bytes that a rank reads of one part, and how often each byte of the file is read by anybody.
std::vector<uint8_t> Read(const internal::PartLoad& part, const std::string& file,
                          std::vector<uint8_t>& reads) {
  std::vector<uint8_t> bytes;
  for (const internal::ByteRange& range : part.ranges()) {
    for (uint64_t i = 0; i < range.count(); ++i) {
      const uint64_t begin = range.offset() + i * range.stride();
      EXPECT_LE(begin + range.length(), file.size());
      bytes.insert(bytes.end(), file.begin() + begin, file.begin() + begin + range.length());
      for (uint64_t b = begin; b < begin + range.length(); ++b) ++reads[b];
    }
  }
  return bytes;
}

// The part of the matrix that a rank holds after packing, as kernels will see it.
std::vector<float> Packed(const WeightFormat& format,
                          const std::vector<std::vector<uint8_t>>& parts, uint64_t source_cols,
                          const MatrixSlice& slice) {
  PackedMatrixBuilder builder(format.Canonical(source_cols, slice));
  const std::vector<absl::Span<const uint8_t>> spans(parts.begin(), parts.end());
  const absl::Status status = format.ToCanonical(spans, source_cols, slice, 0, builder);
  EXPECT_TRUE(status.ok()) << status;
  const PackedMatrix matrix = std::move(builder).Build();
  std::vector<float> values(slice.rows() * slice.cols());
  for (uint64_t row = 0; row < slice.rows(); ++row) {
    matrix.RowToF32(static_cast<int64_t>(row), values.data() + row * slice.cols());
  }
  return values;
}

// How many ranks need an element, said anew from what the model computes: by the heads, the MLP
// columns and the vocabulary that the ranks compute with. Everything else is needed by all.
class Needs {
 public:
  Needs(const std::vector<RankPlan>& plans, const ModelConfig& config)
      : config_(config), world_(plans.size()) {
    for (const RankPlan& plan : plans) {
      for (const TensorLoad& load : plan.load().tensors()) {
        rows_of_[plan.graph().weights(static_cast<int>(load.weight())).name()].push_back(
            {load.row_begin(), load.row_end()});
      }
    }
  }

  struct Counts {
    std::vector<int> rows, cols;  // one of the two is given
    int At(uint64_t row, uint64_t col) const { return rows.empty() ? cols[col] : rows[row]; }
  };

  Counts Of(const internal::Weight& weight) const {
    const std::string& name = weight.name();
    const std::string layer = name.substr(0, name.find('.', std::string("model.layers.").size()));
    const auto is = [&name](const char* suffix) { return absl::EndsWith(name, suffix); };
    if (is("q_proj.weight")) return {.rows = Owners(name, weight.rows()), .cols = {}};
    if (is("o_proj.weight"))
      return {.rows = {}, .cols = Owners(layer + ".self_attn.q_proj.weight", weight.cols())};
    if (is("k_proj.weight") || is("v_proj.weight"))
      return {.rows = KvOwners(layer, weight.rows()), .cols = {}};
    if (is("q_proj.bias"))
      return {.rows = {}, .cols = Owners(layer + ".self_attn.q_proj.weight", weight.cols())};
    if (is("k_proj.bias") || is("v_proj.bias"))
      return {.rows = {}, .cols = KvOwners(layer, weight.cols())};
    if (is("gate_proj.weight") || is("up_proj.weight")) {
      return {.rows = Owners(layer + ".mlp.gate_proj.weight", weight.rows()), .cols = {}};
    }
    if (is("down_proj.weight"))
      return {.rows = {}, .cols = Owners(layer + ".mlp.gate_proj.weight", weight.cols())};
    if (is("embed_tokens.weight") || is("lm_head.weight")) {
      return {.rows = Owners("model.embed_tokens.weight", weight.rows()), .cols = {}};
    }
    return {.rows = std::vector<int>(weight.rows(), static_cast<int>(world_)), .cols = {}};
  }

 private:
  using Runs = std::vector<std::pair<uint64_t, uint64_t>>;  // of each rank

  std::vector<int> Owners(const std::string& name, uint64_t size) const {
    std::vector<int> owners(size);
    for (const auto& [begin, end] : rows_of_.at(name)) {
      for (uint64_t i = begin; i < end; ++i) ++owners[i];
    }
    return owners;
  }

  // The ranks with any Q head of the KV head's group.
  std::vector<int> KvOwners(const std::string& layer, uint64_t size) const {
    const uint64_t group_rows = uint64_t{config_.heads} / config_.kv_heads * config_.head_dim;
    std::vector<int> owners(size);
    for (uint64_t row = 0; row < size; ++row) {
      const uint64_t group_begin = row / config_.head_dim * group_rows;
      for (const auto& [begin, end] : rows_of_.at(layer + ".self_attn.q_proj.weight")) {
        owners[row] += begin < group_begin + group_rows && end > group_begin && begin < end;
      }
    }
    return owners;
  }

  const ModelConfig& config_;
  const size_t world_;
  std::map<std::string, Runs> rows_of_;
};

// What `Needs` takes from the plans is said here of the plans alone: of a cut matrix each row, or
// column, belongs to exactly one rank. Not of K and V, whose heads several ranks may need.
void ProveCut(const std::vector<RankPlan>& plans, const internal::Weight& weight, int w) {
  const auto is = [&weight](const char* suffix) { return absl::EndsWith(weight.name(), suffix); };
  const bool by_cols = is("o_proj.weight") || is("down_proj.weight");
  const bool by_rows = is("q_proj.weight") || is("gate_proj.weight") || is("up_proj.weight") ||
                       is("embed_tokens.weight") || is("lm_head.weight");
  if (!by_cols && !by_rows) return;
  const uint64_t whole = by_cols ? weight.cols() : weight.rows();
  std::vector<bool> owned(whole);
  uint64_t sum = 0;
  for (const RankPlan& plan : plans) {
    const TensorLoad& load = plan.load().tensors(w);
    const uint64_t begin = by_cols ? load.col_begin() : load.row_begin();
    const uint64_t end = by_cols ? load.col_end() : load.row_end();
    ASSERT_LE(begin, end) << weight.name() << " rank " << plan.rank();
    ASSERT_LE(end, whole) << weight.name() << " rank " << plan.rank();
    sum += end - begin;
    for (uint64_t i = begin; i < end; ++i) {
      ASSERT_FALSE(owned[i]) << weight.name() << (by_cols ? " column " : " row ") << i
                             << " of rank " << plan.rank() << " is another's too";
      owned[i] = true;
    }
  }
  EXPECT_EQ(sum, whole) << weight.name();
}

// Bytes of a stored part that are read together, and the elements of the weight that they serve.
struct Unit {
  uint64_t offset = 0, bytes = 0;  // in the part
  MatrixSlice serves;
};

// What of a part serves what, said anew from the formats' descriptions.
std::vector<Unit> UnitsOf(const std::string& name, size_t part, uint64_t rows, uint64_t cols) {
  std::vector<Unit> units;
  if (const BlockFormat* const blocks = FindBlockFormat(name)) {
    const uint64_t block = blocks->block_elements(), bytes = blocks->block_bytes();
    for (uint64_t i = 0; i < rows * cols / block; ++i) {
      const uint64_t row = i * block / cols, col = i * block % cols;
      units.push_back({i * bytes, bytes, {row, row + 1, col, col + block}});
    }
    return units;
  }
  // "ct_int<bits> group=<g>|channel scale=<type> ... [padded]"
  const uint64_t bits = static_cast<uint64_t>(name[6] - '0');
  const size_t at = name.find("group=");
  const uint64_t group = at == std::string::npos ? cols : std::stoull(name.substr(at + 6));
  const uint64_t groups = cols / group;
  const uint64_t scale_bytes = absl::StrContains(name, "scale=f32") ? 4 : 2;
  // The codes that word w of a run of `count` holds any bit of.
  const auto codes_of = [&](uint64_t w, uint64_t count) {
    if (absl::StrContains(name, "padded"))
      return std::pair(w * (32 / bits), std::min(count, (w + 1) * (32 / bits)));
    return std::pair(32 * w / bits, std::min(count, (32 * (w + 1) + bits - 1) / bits));
  };
  const auto words_for = [&](uint64_t count) {
    uint64_t w = 0;
    while (codes_of(w, count).second < count) ++w;
    return w + 1;
  };
  if (part == 0) {
    const uint64_t words = words_for(cols);
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t w = 0; w < words; ++w) {
        const auto [begin, end] = codes_of(w, cols);
        units.push_back({(row * words + w) * 4, 4, {row, row + 1, begin, end}});
      }
    }
  } else if (part == 1) {
    for (uint64_t i = 0; i < rows * groups; ++i) {
      const uint64_t row = i / groups, col = i % groups * group;
      units.push_back({i * scale_bytes, scale_bytes, {row, row + 1, col, col + group}});
    }
  } else {
    for (uint64_t i = 0; i < words_for(rows) * groups; ++i) {
      const auto [begin, end] = codes_of(i / groups, rows);
      units.push_back({i * 4, 4, {begin, end, i % groups * group, (i % groups + 1) * group}});
    }
  }
  return units;
}

// A byte is read by the ranks that need anything it serves; one that straddles a cut by both sides.
void ProveReaders(const TensorInfo& tensor, const std::vector<RankPlan>& plans, int w,
                  const std::vector<std::vector<uint8_t>>& reads) {
  for (size_t p = 0; p < tensor.parts.size(); ++p) {
    const TensorPart& part = tensor.parts[p];
    uint64_t bytes = 0;
    for (const Unit& unit : UnitsOf(tensor.format, p, tensor.rows, tensor.cols)) {
      int readers = 0;
      for (const RankPlan& plan : plans) {
        const TensorLoad& load = plan.load().tensors(w);
        const MatrixSlice& serves = unit.serves;
        readers += load.row_begin() < load.row_end() && load.col_begin() < load.col_end() &&
                   load.row_begin() < serves.row_end && load.row_end() > serves.row_begin &&
                   load.col_begin() < serves.col_end && load.col_end() > serves.col_begin;
      }
      bytes += unit.bytes;
      const uint8_t* const counts = reads[part.file].data() + part.offset + unit.offset;
      for (uint64_t i = 0; i < unit.bytes; ++i) {
        if (counts[i] == readers) continue;
        FAIL() << part.source_name << " byte " << unit.offset + i << " is read " << int{counts[i]}
               << " times, not " << readers << " (" << tensor.format << ")";
      }
    }
    ASSERT_EQ(bytes, part.bytes) << part.source_name;
  }
}

void ProveTensor(const Opened& opened, const std::vector<RankPlan>& plans, const Needs& needs,
                 int w, std::vector<std::vector<uint8_t>>& reads) {
  const internal::Weight& weight = opened.graph.weights(w);
  const TensorInfo& tensor = *opened.checkpoint.index.Find(weight.name());
  const WeightFormat& format = *FindFormat(weight.format());
  const std::vector<float> whole = DecodeStored(tensor, opened.files);

  std::vector<uint8_t> covered(whole.size());  // by how many ranks
  for (const RankPlan& plan : plans) {
    const TensorLoad& load = plan.load().tensors(w);
    ASSERT_EQ(load.weight(), w);
    const MatrixSlice slice{load.row_begin(), load.row_end(), load.col_begin(), load.col_end()};
    ASSERT_EQ(plan.graph().weights(w).rows(), slice.rows());
    ASSERT_EQ(plan.graph().weights(w).cols(), slice.cols());
    std::vector<std::vector<uint8_t>> parts;
    for (const internal::PartLoad& part : load.parts()) {
      parts.push_back(Read(part, opened.files[part.file()], reads[part.file()]));
      ASSERT_TRUE(!slice.empty() || parts.back().empty());
    }
    if (slice.empty()) continue;
    const std::vector<float> values = Packed(format, parts, weight.cols(), slice);
    for (uint64_t r = 0; r < slice.rows(); ++r) {
      const uint64_t at = (slice.row_begin + r) * weight.cols() + slice.col_begin;
      ASSERT_EQ(std::memcmp(values.data() + r * slice.cols(), whole.data() + at,
                            slice.cols() * sizeof(float)),
                0)
          << weight.name() << " rank " << plan.rank() << " of " << plan.world() << " local row "
          << r;
      for (uint64_t c = 0; c < slice.cols(); ++c) ++covered[at + c];
    }
  }
  // Plain comparisons: millions of assertions would take minutes under a sanitizer.
  const Needs::Counts needed = needs.Of(weight);
  for (uint64_t i = 0; i < covered.size(); ++i) {
    const uint64_t row = i / weight.cols(), col = i % weight.cols();
    if (covered[i] > 0 && covered[i] == needed.At(row, col)) continue;
    FAIL() << weight.name() << " [" << row << ", " << col << "] is held by " << int{covered[i]}
           << " ranks, needed by " << needed.At(row, col);
  }
  ProveReaders(tensor, plans, w, reads);
}

void Prove(const std::string& path, const std::vector<double>& shares) {
  const Opened opened = Open(path);
  const auto plans = ShardModel(opened.graph, opened.checkpoint.index, shares);
  ASSERT_TRUE(plans.ok()) << plans.status();
  const Needs needs(*plans, opened.checkpoint.config);
  std::vector<std::vector<uint8_t>> reads;
  for (const std::string& file : opened.files) reads.emplace_back(file.size());
  for (int w = 0; w < opened.graph.weights_size(); ++w) {
    ProveCut(*plans, opened.graph.weights(w), w);
    ProveTensor(opened, *plans, needs, w, reads);
  }

  uint64_t weight_bytes = 0, planned = 0, counted = 0;
  for (const internal::Weight& weight : opened.graph.weights()) {
    weight_bytes += opened.checkpoint.index.Find(weight.name())->bytes();
  }
  std::printf("%s: %llu weight bytes; read by each of %zu ranks:", opened.checkpoint.name.c_str(),
              static_cast<unsigned long long>(weight_bytes), shares.size());
  for (const RankPlan& plan : *plans) {
    std::printf(" %llu", static_cast<unsigned long long>(plan.load().read_bytes()));
    planned += plan.load().read_bytes();
  }
  for (const std::vector<uint8_t>& file : reads) {
    for (uint8_t count : file) counted += count;
  }
  std::printf(" (sum %llu)\n", static_cast<unsigned long long>(planned));
  EXPECT_EQ(counted, planned);
  EXPECT_GE(planned, weight_bytes);
  if (shares.size() == 1) {
    EXPECT_EQ(planned, weight_bytes);
  }
}

class ShardProof : public testing::TestWithParam<const char*> {};

TEST_P(ShardProof, TheShardsMakeTheWholeAtOneToFourRanks) {
  for (size_t world = 1; world <= 4; ++world)
    Prove(GoldenModel(GetParam()), std::vector<double>(world, 1.0));
}

TEST_P(ShardProof, TheShardsMakeTheWholeAtUnevenShares) {
  Prove(GoldenModel(GetParam()), {24, 48});
  Prove(GoldenModel(GetParam()), {1, 5, 2});
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ShardProof,
                         testing::Values("tiny-llama", "tiny-llama-q", "gguf-F16", "gguf-Q4_1",
                                         "gguf-Q8_0", "ct-int3-g32-g128",
                                         "ct-int4-embed-lmhead-int8", "ct-int4-g32-asym",
                                         "ct-int5-g32-g128", "ct-int6-channel", "tiny-qwen2",
                                         "tiny-qwen2-gguf", "gguf-Q4_0", "gguf-Q4_K_M",
                                         "gguf-Q5_K_M", "gguf-Q6_K"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Heads of 48 are one and a half blocks of 32: the ranks' cuts of o_proj fall inside blocks.
TEST(ShardProof, BlocksThatStraddleACutAreReadByBothSides) {
  for (const uint32_t type : {3u, 8u}) {  // q4_1, q8_0
    const std::string path =
        WriteFile(TempFolder() + "/straddle" + std::to_string(type) + ".gguf",
                  MadeLlamaGguf({.heads = 4, .kv_heads = 4, .head_dim = 48, .type = type}));
    for (size_t world = 1; world <= 4; ++world) Prove(path, std::vector<double>(world, 1.0));
  }
}

// The same for every width and packing of compressed-tensors: the cuts fall inside of words, groups
// and words of zero points.
TEST(ShardProof, WordsGroupsAndZeroPointsThatStraddleACutAreReadByBothSides) {
  for (const std::string format :
       {"ct_int2 group=32 scale=f16 asym", "ct_int3 channel scale=bf16 asym dense",
        "ct_int3 group=32 scale=f32 sym padded", "ct_int4 channel scale=f32 asym",
        "ct_int5 group=32 scale=bf16 asym dense", "ct_int5 group=64 scale=bf16 asym padded",
        "ct_int6 group=32 scale=f16 asym padded", "ct_int7 group=32 scale=f32 asym dense",
        "ct_int7 channel scale=bf16 asym padded", "ct_int8 group=64 scale=bf16 asym"}) {
    const std::string path = WriteMadeCtLlama(TempFolder() + "/" + format, {.format = format});
    for (size_t world = 1; world <= 4; ++world) Prove(path, std::vector<double>(world, 1.0));
    Prove(path, {1, 5, 2});
  }
}

}  // namespace
}  // namespace bitshard
