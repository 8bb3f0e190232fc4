#include "worker/load/loader.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/tensor/synthetic.h"
#include "tests/worker/tiny_model.h"

namespace bitshard {
namespace {

using internal::RankPlan;

absl::StatusOr<std::shared_ptr<const LoadedWeights>> Load(const RankPlan& plan, int threads = 2) {
  ThreadPool pool(threads);
  return LoadWeights(plan, pool, nullptr);
}

class EveryFormat : public testing::TestWithParam<std::string> {};

// Each element of each weight, at its place in the whole tensor: what ranks hold together is the
// whole, and they agree.
TEST_P(EveryFormat, ShardsPutTogetherAreTheWholeTensor) {
  TinyModelOptions options;
  options.format = GetParam();
  const TinyModel model = MakeTinyModel(options);
  for (int world = 1; world <= 4; ++world) {
    std::map<std::string, std::vector<float>> whole;
    std::map<std::string, std::vector<bool>> seen;
    for (const RankPlan& plan : CutTinyModel(model, world)) {
      const auto weights = Load(plan);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ((*weights)->read_bytes, plan.load().read_bytes());
      uint64_t bytes = 0;
      for (const internal::TensorLoad& load : plan.load().tensors()) {
        const std::string& name = plan.graph().weights(static_cast<int>(load.weight())).name();
        auto& expected = whole[name];
        if (expected.empty()) expected = DecodeTensor(model, name);
        auto& marks = seen[name];
        marks.resize(expected.size());
        const PackedMatrix& matrix = (*weights)->matrices[load.weight()];
        const std::vector<float>& vector = (*weights)->vectors[load.weight()];
        bytes += matrix.bytes() + vector.size() * sizeof(float);
        const uint64_t cols = load.col_end() - load.col_begin();
        if (load.row_begin() == load.row_end() || cols == 0) {
          EXPECT_EQ(matrix.bytes() + vector.size(), 0u) << name;
          continue;
        }
        for (uint64_t row = load.row_begin(); row < load.row_end(); ++row) {
          std::vector<float> values = vector;
          if (vector.empty()) {
            values.resize(cols);
            matrix.RowToF32(static_cast<int64_t>(row - load.row_begin()), values.data());
          }
          for (uint64_t col = 0; col < cols; ++col) {
            const uint64_t at = row * load.cols() + load.col_begin() + col;
            ASSERT_EQ(values[col], expected[at])
                << name << " [" << row << ", " << load.col_begin() + col << "]";
            marks[at] = true;
          }
        }
      }
      EXPECT_EQ(bytes, (*weights)->arena_bytes);
    }
    for (const auto& [name, marks] : seen) {
      for (size_t i = 0; i < marks.size(); ++i) ASSERT_TRUE(marks[i]) << name << " element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat,
                         testing::Values("f32", "f16", "bf16", "q8_0", "q4_1",
                                         "ct_int3 group=16 scale=f16 asym padded",
                                         "ct_int5 group=32 scale=bf16 asym dense",
                                         "ct_int6 channel scale=f32 sym dense",
                                         "ct_int8 channel scale=bf16 asym"));

// An embedding that is read in many strips: words of zero points that two strips need count once.
TEST(LoadWeights, StripsShareWordsOfZeroPoints) {
  TinyModelOptions options;
  options.format = "ct_int5 group=16 scale=f32 asym dense";
  options.vocab = 60001;
  options.layers = 1;
  const TinyModel model = MakeTinyModel(options);
  const std::vector<float> whole = DecodeTensor(model, "embed.weight");
  for (const RankPlan& plan : CutTinyModel(model, 3)) {
    const auto weights = Load(plan);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ((*weights)->read_bytes, plan.load().read_bytes());
    const internal::TensorLoad& load = plan.load().tensors(0);
    ASSERT_EQ(plan.graph().weights(0).name(), "embed.weight");
    const PackedMatrix& matrix = (*weights)->matrices[0];
    std::vector<float> row(options.hidden);
    for (uint64_t r = load.row_begin(); r < load.row_end(); ++r) {
      matrix.RowToF32(static_cast<int64_t>(r - load.row_begin()), row.data());
      ASSERT_EQ(
          std::memcmp(row.data(), whole.data() + r * options.hidden, row.size() * sizeof(float)), 0)
          << "row " << r;
    }
  }
}

// f32: whatever the arena has beyond the matrices' own values is padding.
TEST(LoadWeights, PaddingIsWhatTilesHaveBeyondTheMatrices) {
  const TinyModel model = MakeTinyModel();  // a vocabulary of 200 rows, an MLP of 160
  uint64_t all = 0;
  for (int world = 1; world <= 3; ++world) {
    for (const RankPlan& plan : CutTinyModel(model, world)) {
      const auto weights = Load(plan);
      ASSERT_TRUE(weights.ok()) << weights.status();
      uint64_t vectors = 0, values = 0;
      for (size_t i = 0; i < (*weights)->matrices.size(); ++i) {
        const PackedMatrix& matrix = (*weights)->matrices[i];
        vectors += (*weights)->vectors[i].size() * sizeof(float);
        values += static_cast<uint64_t>(matrix.rows() * matrix.cols()) * sizeof(float);
      }
      EXPECT_EQ((*weights)->vector_bytes, vectors);
      EXPECT_EQ((*weights)->padding_bytes, (*weights)->arena_bytes - vectors - values);
      all += (*weights)->padding_bytes;
    }
  }
  EXPECT_GT(all, 0u) << "this model has nothing to pad: it shows nothing";
}

TEST(LoadWeights, ProgressEndsAtTheTotalAndNeverFalls) {
  const TinyModel model = MakeTinyModel();
  const RankPlan plan = CutTinyModel(model, 2)[0];
  ThreadPool pool(2);
  uint64_t last = 0, total = 0;
  const auto weights = LoadWeights(plan, pool, [&](uint64_t done_bytes, uint64_t total_bytes) {
    EXPECT_GE(done_bytes, last);
    last = done_bytes;
    total = total_bytes;
  });
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(last, plan.load().read_bytes());
  EXPECT_EQ(total, plan.load().read_bytes());
}

TEST(LoadWeights, MissingFileIsNotFoundAndNamesThePath) {
  const TinyModel model = MakeTinyModel();
  const RankPlan plan = CutTinyModel(model, 1)[0];
  unlink(model.path.c_str());
  const absl::Status status = Load(plan).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find(model.path), std::string::npos) << status;
  EXPECT_NE(status.message().find("same path"), std::string::npos) << status;
}

TEST(LoadWeights, AFifoIsRefusedAndDoesNotHang) {
  const TinyModel model = MakeTinyModel();
  const RankPlan plan = CutTinyModel(model, 1)[0];
  unlink(model.path.c_str());
  ASSERT_EQ(mkfifo(model.path.c_str(), 0600), 0);
  const absl::Status status = Load(plan).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find("not a regular file"), std::string::npos) << status;
}

TEST(LoadWeights, FileOfAnotherSizeIsDataLoss) {
  const TinyModel model = MakeTinyModel();
  const RankPlan plan = CutTinyModel(model, 1)[0];
  ASSERT_EQ(truncate(model.path.c_str(), 1000), 0);
  EXPECT_EQ(Load(plan).status().code(), absl::StatusCode::kDataLoss);
}

TEST(LoadWeights, DamagedScaleIsDataLossAndNamesTheTensor) {
  TinyModelOptions options;
  options.format = "q4_1";
  const TinyModel model = MakeTinyModel(options);
  const TensorInfo* info = model.index.Find("layers.1.up.weight");
  FILE* file = fopen(model.path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  fseek(file, static_cast<long>(info->parts[0].offset), SEEK_SET);
  fputs("\xff\x7f", file);  // an f16 NaN
  fclose(file);
  const absl::Status status = Load(CutTinyModel(model, 1)[0]).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("file.layers.1.up.weight"), std::string::npos) << status;
}

TEST(LoadWeights, MoreThanTheBudgetIsResourceExhausted) {
  const RankPlan plan = CutTinyModel(MakeTinyModel(), 1)[0];
  ThreadPool pool(1);
  const absl::Status status = LoadWeights(plan, pool, nullptr, /*max_arena_bytes=*/1000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

// Keeps the values of what it is given.
class KeepingSink final : public WeightSink {
 public:
  absl::StatusOr<uint64_t> Take(uint32_t weight, const PackedMatrix& matrix) override {
    if (refuses) return absl::ResourceExhaustedError("full");
    std::vector<std::vector<float>>& rows = taken[weight];
    EXPECT_TRUE(rows.empty()) << "weight " << weight << " comes twice";
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      rows.emplace_back(static_cast<size_t>(matrix.cols()));
      matrix.RowToF32(row, rows.back().data());
    }
    return kBytes;
  }
  absl::StatusOr<uint64_t> Make(uint32_t weight, const PackedSpec& spec,
                                const SyntheticSource& source) override {
    PackedMatrixBuilder builder(spec);
    FillSyntheticRows(source, 0, spec.rows, builder);
    ++made;
    return Take(weight, std::move(builder).Build());
  }
  absl::StatusOr<std::shared_ptr<const DeviceWeights>> Finish(
      const std::vector<std::vector<float>>& all) override {
    vectors = all;
    return std::shared_ptr<const DeviceWeights>();
  }

  static constexpr uint64_t kBytes = 1000;
  bool refuses = false;
  int made = 0;  // of those taken
  std::map<uint32_t, std::vector<std::vector<float>>> taken;
  std::vector<std::vector<float>> vectors;
};

TEST(LoadWeights, ASinkGetsEveryMatrixAndTheHostKeepsNone) {
  TinyModelOptions options;
  options.format = "q4_1";
  const RankPlan plan = CutTinyModel(MakeTinyModel(options), 2)[0];
  const auto kept = Load(plan);
  ASSERT_TRUE(kept.ok()) << kept.status();
  ThreadPool pool(2);
  KeepingSink sink;
  const auto moved = LoadWeights(plan, pool, nullptr, UINT64_MAX, &sink);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ((*moved)->arena, nullptr);
  EXPECT_EQ(sink.vectors, (*kept)->vectors);
  EXPECT_EQ((*moved)->read_bytes, (*kept)->read_bytes);
  EXPECT_EQ((*moved)->padding_bytes, (*kept)->padding_bytes);
  EXPECT_EQ((*moved)->vector_bytes, (*kept)->vector_bytes);
  EXPECT_EQ((*moved)->arena_bytes, sink.taken.size() * sink.kBytes + (*kept)->vector_bytes);
  ASSERT_EQ((*moved)->matrix_count(), (*kept)->matrix_count());
  for (size_t weight = 0; weight < (*kept)->matrix_count(); ++weight) {
    const PackedMatrix& matrix = (*kept)->matrices[weight];
    EXPECT_EQ((*moved)->matrices[weight].rows(), 0);
    EXPECT_EQ((*moved)->SpecOf(weight).Describe(), (*kept)->SpecOf(weight).Describe());
    EXPECT_EQ((*moved)->SpecOf(weight).rows, (*kept)->SpecOf(weight).rows);
    EXPECT_EQ((*moved)->BytesOf(weight), matrix.rows() == 0 ? 0 : sink.kBytes);
    const auto& rows = sink.taken[static_cast<uint32_t>(weight)];
    ASSERT_EQ(static_cast<int64_t>(rows.size()), matrix.rows()) << weight;
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      std::vector<float> values(static_cast<size_t>(matrix.cols()));
      matrix.RowToF32(row, values.data());
      EXPECT_EQ(rows[static_cast<size_t>(row)], values) << weight << " row " << row;
    }
  }
}

TEST(LoadWeights, WhatASinkRefusesEndsTheLoad) {
  const RankPlan plan = CutTinyModel(MakeTinyModel(), 1)[0];
  ThreadPool pool(1);
  KeepingSink sink;
  sink.refuses = true;
  const absl::Status status = LoadWeights(plan, pool, nullptr, UINT64_MAX, &sink).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "full");
}

TinyModel SyntheticTinyModel(const std::string& format = "ct_int5 group=32 scale=bf16 asym dense") {
  TinyModelOptions options;
  options.format = format;
  TinyModel model = MakeTinyModel(options);
  model.index.set_synthetic_seed(7);
  return model;
}

// Nothing is read, and what the ranks of any cut hold is the same everywhere.
TEST_P(EveryFormat, SyntheticShardsAreCutsOfOneWhole) {
  const TinyModel model = SyntheticTinyModel(GetParam());
  const RankPlan alone = CutTinyModel(model, 1)[0];
  const auto whole = Load(alone);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*whole)->read_bytes, 0u);
  for (int world = 2; world <= 3; ++world) {
    for (const RankPlan& plan : CutTinyModel(model, world)) {
      EXPECT_EQ(plan.load().files_size(), 0);
      uint64_t most = 0, total = 0;
      ThreadPool pool(2);
      const auto weights = LoadWeights(plan, pool, [&](uint64_t done, uint64_t all) {
        EXPECT_GE(done, most);
        most = done;
        total = all;
      });
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_EQ(most, total);
      EXPECT_EQ(total, (*weights)->arena_bytes);
      for (const internal::TensorLoad& load : plan.load().tensors()) {
        const PackedMatrix& part = (*weights)->matrices[load.weight()];
        const std::vector<float>& vector = (*weights)->vectors[load.weight()];
        const std::vector<float>& whole_vector = (*whole)->vectors[load.weight()];
        for (size_t i = 0; i < vector.size(); ++i)
          ASSERT_EQ(vector[i], whole_vector[load.col_begin() + i]);
        std::vector<float> values(static_cast<size_t>(part.cols())), expected(load.cols());
        for (int64_t row = 0; row < part.rows(); ++row) {
          part.RowToF32(row, values.data());
          (*whole)->matrices[load.weight()].RowToF32(row + static_cast<int64_t>(load.row_begin()),
                                                     expected.data());
          for (size_t col = 0; col < values.size(); ++col)
            ASSERT_EQ(values[col], expected[load.col_begin() + col]) << "row " << row;
        }
      }
    }
  }
}

TEST(LoadWeights, ASinkMakesSyntheticMatricesItself) {
  const RankPlan plan = CutTinyModel(SyntheticTinyModel(), 2)[1];
  const auto kept = Load(plan);
  ASSERT_TRUE(kept.ok()) << kept.status();
  ThreadPool pool(2);
  KeepingSink sink;
  const auto moved = LoadWeights(plan, pool, nullptr, UINT64_MAX, &sink);
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(static_cast<size_t>(sink.made), sink.taken.size());
  EXPECT_EQ(sink.vectors, (*kept)->vectors);
  EXPECT_EQ((*moved)->padding_bytes, (*kept)->padding_bytes);
  for (const auto& [weight, rows] : sink.taken) {
    const PackedMatrix& matrix = (*kept)->matrices[weight];
    ASSERT_EQ(static_cast<int64_t>(rows.size()), matrix.rows());
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      std::vector<float> values(static_cast<size_t>(matrix.cols()));
      matrix.RowToF32(row, values.data());
      EXPECT_EQ(rows[static_cast<size_t>(row)], values) << weight << " row " << row;
    }
  }
}

TEST(LoadWeights, SyntheticPlansThatContradictThemselvesAreInvalid) {
  const RankPlan good = CutTinyModel(SyntheticTinyModel(), 2)[0];
  RankPlan parts = good;
  parts.mutable_load()->mutable_tensors(0)->add_parts();
  EXPECT_EQ(Load(parts).status().code(), absl::StatusCode::kInvalidArgument);
  RankPlan seedless = good;
  seedless.mutable_load()->clear_synthetic_seed();
  EXPECT_EQ(Load(seedless).status().code(), absl::StatusCode::kInvalidArgument);
  RankPlan read = good;
  read.mutable_load()->set_read_bytes(1);
  EXPECT_EQ(Load(read).status().code(), absl::StatusCode::kInvalidArgument);
}

// Every way in which a plan can contradict itself.
TEST(LoadWeights, PlanThatContradictsItselfIsInvalid) {
  const TinyModel model = MakeTinyModel();
  const RankPlan good = CutTinyModel(model, 2)[1];
  ASSERT_TRUE(Load(good).ok());
  using Break = void (*)(RankPlan&, internal::TensorLoad&);
  const std::map<std::string, Break> breaks = {
      {"weight index", [](RankPlan&, internal::TensorLoad& t) { t.set_weight(1000); }},
      {"file index", [](RankPlan&, internal::TensorLoad& t) { t.mutable_parts(0)->set_file(7); }},
      {"no part", [](RankPlan&, internal::TensorLoad& t) { t.clear_parts(); }},
      {"a part too many", [](RankPlan&, internal::TensorLoad& t) { *t.add_parts() = t.parts(0); }},
      {"weight twice",
       [](RankPlan& p, internal::TensorLoad& t) { *p.mutable_load()->add_tensors() = t; }},
      {"row range", [](RankPlan&, internal::TensorLoad& t) { t.set_row_end(t.rows() + 1); }},
      {"reversed columns",
       [](RankPlan&, internal::TensorLoad& t) { t.set_col_begin(t.col_end() + 1); }},
      {"other format", [](RankPlan&, internal::TensorLoad& t) { t.set_format("bf16"); }},
      {"bytes of a row",
       [](RankPlan&, internal::TensorLoad& t) {
         t.mutable_parts(0)->set_byte_end(t.parts(0).byte_end() - 4);
       }},
      {"rows of a part",
       [](RankPlan&, internal::TensorLoad& t) {
         t.mutable_parts(0)->set_row_begin(t.parts(0).row_begin() + 1);
       }},
      {"short ranges",
       [](RankPlan&, internal::TensorLoad& t) {
         internal::ByteRange& range = *t.mutable_parts(0)->mutable_ranges(0);
         range.set_length(range.length() - 4);
       }},
      {"no ranges", [](RankPlan&, internal::TensorLoad& t) { t.mutable_parts(0)->clear_ranges(); }},
      {"beyond the file",
       [](RankPlan&, internal::TensorLoad& t) {
         t.mutable_parts(0)->mutable_ranges(0)->set_offset(1u << 30);
       }},
      {"overflow",
       [](RankPlan&, internal::TensorLoad& t) {
         t.mutable_parts(0)->mutable_ranges(0)->set_offset(~uint64_t{0} - 8);
       }},
      {"read bytes",
       [](RankPlan& p, internal::TensorLoad&) { p.mutable_load()->set_read_bytes(1); }},
      {"graph shape",
       [](RankPlan& p, internal::TensorLoad& t) {
         internal::Weight& w = *p.mutable_graph()->mutable_weights(static_cast<int>(t.weight()));
         w.set_rows(w.rows() + 1);
       }},
      {"weight without load",
       [](RankPlan& p, internal::TensorLoad&) {
         p.mutable_load()->mutable_tensors()->RemoveLast();
       }},
  };
  for (const auto& [name, break_it] : breaks) {
    RankPlan plan = good;
    break_it(plan, *plan.mutable_load()->mutable_tensors(0));
    const absl::Status status = Load(plan).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name << ": " << status;
  }
  RankPlan unknown = good;
  unknown.mutable_load()->mutable_tensors(0)->set_format("q9_9");
  unknown.mutable_graph()
      ->mutable_weights(static_cast<int>(unknown.load().tensors(0).weight()))
      ->set_format("q9_9");
  EXPECT_EQ(Load(unknown).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace bitshard
