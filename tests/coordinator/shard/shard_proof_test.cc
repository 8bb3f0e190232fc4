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
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/coordinator/shard/made_gguf.h"
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

// The bytes that a rank reads of one tensor, and how often each byte of the file is read by
// anybody.
std::vector<uint8_t> Read(const TensorLoad& load, const std::string& file,
                          std::vector<uint8_t>& reads) {
  std::vector<uint8_t> bytes;
  for (const internal::ByteRange& range : load.ranges()) {
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
std::vector<float> Packed(const WeightFormat& format, const std::vector<uint8_t>& bytes,
                          uint64_t rows, const ColumnSlice& slice) {
  PackedMatrixBuilder builder(format.Canonical(rows, slice));
  const absl::Status status = format.ToCanonical(bytes, 0, rows, slice, builder);
  EXPECT_TRUE(status.ok()) << status;
  const PackedMatrix matrix = std::move(builder).Build();
  std::vector<float> values(rows * slice.cols());
  for (uint64_t row = 0; row < rows; ++row) {
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

void ProveTensor(const Opened& opened, const std::vector<RankPlan>& plans, const Needs& needs,
                 int w, std::vector<std::vector<uint8_t>>& reads) {
  const internal::Weight& weight = opened.graph.weights(w);
  const TensorInfo& tensor = *opened.checkpoint.index.Find(weight.name());
  const WeightFormat& format = *FindFormat(weight.format());
  const std::string& file = opened.files[tensor.file];
  const auto* stored = reinterpret_cast<const uint8_t*>(file.data()) + tensor.offset;
  std::vector<float> whole(weight.rows() * weight.cols());
  format.Decode({stored, tensor.bytes}, weight.rows(), weight.cols(), whole.data());

  std::vector<uint8_t> covered(whole.size());  // by how many ranks
  for (const RankPlan& plan : plans) {
    const TensorLoad& load = plan.load().tensors(w);
    ASSERT_EQ(load.weight(), w);
    ASSERT_EQ(plan.graph().weights(w).rows(), load.row_end() - load.row_begin());
    ASSERT_EQ(plan.graph().weights(w).cols(), load.col_end() - load.col_begin());
    const std::vector<uint8_t> bytes = Read(load, file, reads[tensor.file]);
    const uint64_t rows = load.row_end() - load.row_begin();
    const ColumnSlice slice{load.col_begin(), load.col_end(), load.read_col_begin(),
                            load.read_col_end()};
    if (rows == 0 || slice.cols() == 0) {
      ASSERT_TRUE(bytes.empty());
      continue;
    }
    const std::vector<float> values = Packed(format, bytes, rows, slice);
    for (uint64_t r = 0; r < rows; ++r) {
      const uint64_t at = (load.row_begin() + r) * weight.cols() + slice.begin;
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
  // A block is read by the ranks that need any of its values; one that straddles a cut by both
  // sides.
  const uint64_t block = format.block_elements();
  for (uint64_t b = 0; b < covered.size() / block; ++b) {
    const uint64_t row = b * block / weight.cols(), col = b * block % weight.cols();
    int readers = 0;
    for (const RankPlan& plan : plans) {
      const TensorLoad& load = plan.load().tensors(w);
      readers += load.row_begin() <= row && row < load.row_end() &&
                 load.col_begin() < col + block && load.col_end() > col;
    }
    const uint8_t* const counts =
        reads[tensor.file].data() + tensor.offset + b * format.block_bytes();
    for (uint64_t i = 0; i < format.block_bytes(); ++i) {
      if (counts[i] == readers) continue;
      FAIL() << weight.name() << " block " << b << " byte " << i << " is read " << int{counts[i]}
             << " times, not " << readers;
    }
  }
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
    weight_bytes += opened.checkpoint.index.Find(weight.name())->bytes;
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
                                         "gguf-Q8_0"),
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

}  // namespace
}  // namespace bitshard
