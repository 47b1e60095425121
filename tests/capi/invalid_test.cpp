// Calls that the C interface refuses: each with its status and a message that names the argument.

#include <cstdint>
#include <functional>
#include <vector>

#include "capi/support.hpp"

namespace rankone::test {
namespace {

// A valid call of rankone_two_key that each row of a table spoils.
struct TwoKeyCall {
  Tensor q = uniform({6, 2, 8}, Dtype::f32, -1, 1, 1);
  Tensor e = uniform({6, 2, 8}, Dtype::f32, -0.3, 0.3, 2);
  Tensor v = uniform({6, 4, 5}, Dtype::f32, -1, 1, 3);
  Tensor g = uniform({6, 4}, Dtype::f32, -1, 0, 4);
  Tensor b = uniform({6, 4}, Dtype::f32, 0, 1, 5);
  Tensor state = uniform({2, 4, 8, 5}, Dtype::f32, -1, 1, 6);
  Tensor o = Tensor::zeros({6, 4, 5}, Dtype::f32);
  rankone_two_key_inputs in{c_tensor(q), c_tensor(e), c_tensor(e),     c_tensor(v),
                            c_tensor(g), c_tensor(b), c_tensor(state), 1.0};
  rankone_two_key_outputs out{c_tensor(o), {}, {}};
};

class Refused : public CInterface {
 protected:
  void SetUp() override {
    CInterface::SetUp();
    sequences = cut(Sequences::dense(2, 3));
  }
  rankone_status two_key(const TwoKeyCall& data, const rankone_call& call) {
    return rankone_two_key(context_, sequences, &data.in, &data.out, &call);
  }
  std::size_t needed(const TwoKeyCall& data) {
    std::size_t bytes = 0;
    rankone_call call{};
    call.query = &bytes;
    EXPECT_EQ(two_key(data, call), RANKONE_OK) << rankone_last_error(context_);
    return bytes;
  }
  std::string message() const { return rankone_last_error(context_); }
  void expect_message(const std::string& part) const {
    EXPECT_NE(message().find(part), std::string::npos) << message() << "\nlacks: " << part;
    EXPECT_EQ(message().find('\n'), std::string::npos);
  }

  const rankone_sequences* sequences = nullptr;
};

TEST_F(Refused, TensorsThatCanNotBeMeant) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 61;
  struct Row {
    const char* message;
    std::function<void(TwoKeyCall&)> spoil;
  };
  const std::vector<Row> table = {
      {"scale is 0", [](TwoKeyCall& c) { c.in.scale = 0; }},
      {"q has rank -1", [](TwoKeyCall& c) { c.in.q.rank = -1; }},
      {"q has rank 9", [](TwoKeyCall& c) { c.in.q.rank = 9; }},
      {"q is 17", [](TwoKeyCall& c) { c.in.q.dtype = 17; }},
      {"q is -1", [](TwoKeyCall& c) { c.in.q.dtype = -1; }},
      {"q is undefined", [](TwoKeyCall& c) { c.in.q.rank = 0; }},
      {"w is undefined", [](TwoKeyCall& c) { c.in.w = {}; }},
      {"v is undefined", [](TwoKeyCall& c) { c.in.v = {}; }},
      {"q has no memory", [](TwoKeyCall& c) { c.in.q.data = nullptr; }},
      {"o has no memory", [](TwoKeyCall& c) { c.out.o.data = nullptr; }},
      {"no multiple of its element size",
       [](TwoKeyCall& c) { c.in.v.data = static_cast<char*>(c.in.v.data) + 1; }},
      {"v has an extent below 0", [](TwoKeyCall& c) { c.in.v.shape[0] = -6; }},
      {"reaches beyond", [](TwoKeyCall& c) { c.in.v.shape[0] = kHuge; }},
      {"reaches beyond", [](TwoKeyCall& c) { c.in.v.strides[0] = kHuge; }},
      {"reaches beyond", [](TwoKeyCall& c) { c.in.v.strides[0] = INT64_MIN; }},
      {"v has shape [5, 4, 5]", [](TwoKeyCall& c) { c.in.v.shape[0] = 5; }},
      {"e has shape [6, 2, 7]", [](TwoKeyCall& c) { c.in.e.shape[2] = 7; }},
      {"HV is 3", [](TwoKeyCall& c) { c.in.v.shape[1] = 3; }},
      {"g has shape", [](TwoKeyCall& c) { c.in.g.shape[1] = 2; }},
      {"b is f64",
       [](TwoKeyCall& c) {
         c.b = c.b.to(Dtype::f64);
         c.in.b = c_tensor(c.b);
       }},
      {"initial_state has shape", [](TwoKeyCall& c) { c.in.initial_state.shape[0] = 1; }},
      {"o has shape", [](TwoKeyCall& c) { c.out.o.shape[2] = 4; }},
      {"o is an output whose elements share memory", [](TwoKeyCall& c) { c.out.o.strides[1] = 0; }},
      {"q is i64", [](TwoKeyCall& c) { c.in.q.dtype = RANKONE_I64; }},
  };
  const std::size_t bytes = needed(TwoKeyCall()) + 4096;  // room for a copy of any one input
  const WorkspaceMemory workspace(bytes);
  const rankone_call call{nullptr, workspace.data(), bytes, nullptr};
  for (const Row& row : table) {
    TwoKeyCall data;
    row.spoil(data);
    EXPECT_EQ(two_key(data, call), RANKONE_INVALID_ARGUMENT) << row.message;
    expect_message(row.message);
  }
  EXPECT_EQ(two_key(TwoKeyCall(), call), RANKONE_OK) << message();
  EXPECT_EQ(message(), "");
}

TEST_F(Refused, WorkspaceTooSmallOrMisplaced) {
  TwoKeyCall data;
  data.in.q = c_tensor(uniform({6, 2, 8}, Dtype::f32, -1, 1, 1));
  // A strided input needs a copy, so that there is something to need.
  const Tensor wide = uniform({6, 2, 16}, Dtype::f32, -1, 1, 7);
  data.in.q = c_tensor(wide.slice(2, 4, 12));
  const std::size_t bytes = needed(data);
  ASSERT_GE(bytes, 6U * 2 * 8 * 4);
  const WorkspaceMemory workspace(bytes + 64);
  rankone_call call{nullptr, workspace.data(), bytes, nullptr};
  EXPECT_EQ(two_key(data, call), RANKONE_OK) << message();
  for (const std::size_t too_few : {std::size_t{0}, std::size_t{1}, bytes / 2, bytes - 1}) {
    call.workspace_bytes = too_few;
    EXPECT_EQ(two_key(data, call), RANKONE_OUT_OF_MEMORY);
    expect_message("[rankone_two_key] the workspace has " + std::to_string(too_few) +
                   " bytes (this call needs " + std::to_string(bytes) + ")");
  }
  call = {nullptr, static_cast<char*>(workspace.data()) + 4, bytes, nullptr};
  EXPECT_EQ(two_key(data, call), RANKONE_INVALID_ARGUMENT);
  expect_message("multiple of 64");
  call = {nullptr, nullptr, bytes, nullptr};
  EXPECT_EQ(two_key(data, call), RANKONE_INVALID_ARGUMENT);
  expect_message("null");
}

TEST_F(Refused, NullPointers) {
  const TwoKeyCall data;
  std::size_t bytes = 0;
  rankone_call call{};
  call.query = &bytes;
  EXPECT_EQ(rankone_two_key(nullptr, sequences, &data.in, &data.out, &call),
            RANKONE_INVALID_ARGUMENT);
  EXPECT_EQ(rankone_two_key(context_, nullptr, &data.in, &data.out, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("sequences is null");
  EXPECT_EQ(rankone_two_key(context_, sequences, nullptr, &data.out, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("inputs is null");
  EXPECT_EQ(rankone_two_key(context_, sequences, &data.in, nullptr, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("outputs is null");
  EXPECT_EQ(rankone_two_key(context_, sequences, &data.in, &data.out, nullptr),
            RANKONE_INVALID_ARGUMENT);
  expect_message("call is null");
  EXPECT_EQ(rankone_two_key_step(context_, sequences, &data.in, nullptr, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("o is null");
  EXPECT_EQ(rankone_two_key_vjp(context_, sequences, &data.in, nullptr, nullptr, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("cotangents is null");

  EXPECT_EQ(rankone_two_key_saved(context_, sequences, &data.in, nullptr),
            RANKONE_INVALID_ARGUMENT);
  expect_message("numbers is null");
  // On a CPU nothing is saved.
  std::int64_t numbers = 7;
  EXPECT_EQ(rankone_two_key_saved(context_, sequences, &data.in, &numbers), RANKONE_OK);
  EXPECT_EQ(numbers, 0);
  const Tensor some = Tensor::zeros({3}, Dtype::f32);
  rankone_two_key_outputs saving = data.out;
  saving.saved = c_tensor(some);
  EXPECT_EQ(rankone_two_key(context_, sequences, &data.in, &saving, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("saved has shape [3]");

  // The rest of the functions, every pointer null.
  const auto all_null = [&](rankone_context* context) {
    return std::vector<rankone_status>{
        rankone_two_key_saved(context, nullptr, nullptr, nullptr),
        rankone_two_key_vjp(context, nullptr, nullptr, nullptr, nullptr, nullptr),
        rankone_two_key_step(context, nullptr, nullptr, nullptr, nullptr),
        rankone_precondition(context, nullptr, nullptr, nullptr, nullptr),
        rankone_precondition_saved(context, nullptr, nullptr, nullptr),
        rankone_precondition_vjp(context, nullptr, nullptr, nullptr, nullptr, nullptr),
        rankone_decay(context, nullptr, nullptr, nullptr),
        rankone_decay_vjp(context, nullptr, nullptr, nullptr, nullptr),
        rankone_gain(context, nullptr, nullptr, nullptr, nullptr),
        rankone_gain_vjp(context, nullptr, nullptr, nullptr, nullptr, nullptr),
        rankone_mesa(context, nullptr, nullptr, nullptr, nullptr),
        rankone_mesa_vjp(context, nullptr, nullptr, nullptr, nullptr, nullptr),
        rankone_longhorn(context, nullptr, nullptr, nullptr, nullptr),
        rankone_longhorn_vjp(context, nullptr, nullptr, nullptr, nullptr, nullptr),
        rankone_sequences_dense(context, 1, 1, nullptr),
        rankone_sequences_packed(context, nullptr, 0, nullptr)};
  };
  for (rankone_context* context : {context_, static_cast<rankone_context*>(nullptr)}) {
    for (const rankone_status status : all_null(context)) {
      EXPECT_EQ(status, RANKONE_INVALID_ARGUMENT);
    }
  }
  rankone_sequences_free(nullptr);
  rankone_context_free(nullptr);
  EXPECT_STREQ(rankone_last_error(nullptr), "the context is null");
  EXPECT_EQ(rankone_row_major(nullptr, RANKONE_F32, 3, nullptr).rank, 0);
}

TEST_F(Refused, StepsOfMoreThanEightRowsOrWithoutAState) {
  const Tensor q = uniform({9, 1, 4}, Dtype::f32, -0.3, 0.3, 1);
  const Tensor state = Tensor::zeros({1, 1, 4, 4}, Dtype::f32);
  rankone_two_key_inputs in{c_tensor(q), c_tensor(q), c_tensor(q),     c_tensor(q),
                            {},          {},          c_tensor(state), 1.0};
  const rankone_tensor o = c_tensor(Tensor::zeros({9, 1, 4}, Dtype::f32));
  std::size_t bytes = 0;
  rankone_call call{};
  call.query = &bytes;
  EXPECT_EQ(rankone_two_key_step(context_, cut(Sequences::dense(1, 9)), &in, &o, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("9 rows (at most 8 a step)");
  in.initial_state = {};
  EXPECT_EQ(rankone_two_key_step(context_, cut(Sequences::dense(9, 1)), &in, &o, &call),
            RANKONE_INVALID_ARGUMENT);
  expect_message("initial_state is absent");
}

TEST_F(Refused, ChoicesThatDoNotExist) {
  const Tensor x = uniform({6, 4}, Dtype::f32, -1, 1, 1);
  const rankone_tensor t = c_tensor(x);
  std::size_t bytes = 0;
  rankone_call call{};
  call.query = &bytes;
  struct Row {
    const char* message;
    std::function<rankone_status()> run;
  };
  rankone_gain_inputs gain{};
  rankone_decay_inputs decay{};
  rankone_precondition_inputs precondition{};
  rankone_gain_outputs gain_out{t, {}, {}, {}};
  rankone_decay_outputs decay_out{t, {}};
  rankone_precondition_outputs precondition_out{};
  const auto run_gain = [&] { return rankone_gain(context_, sequences, &gain, &gain_out, &call); };
  const auto run_decay = [&] { return rankone_decay(context_, &decay, &decay_out, &call); };
  const auto run_precondition = [&] {
    return rankone_precondition(context_, sequences, &precondition, &precondition_out, &call);
  };
  const Tensor keys = uniform({6, 2, 4}, Dtype::f32, -1, 1, 2);
  const Tensor center = Tensor::zeros({2}, Dtype::f32), some = Tensor::zeros({3}, Dtype::f32);
  const std::vector<Row> table = {
      {"kind is 10 (0 to 9)", [&] { return gain = {}, gain.kind = 10, run_gain(); }},
      {"time_factor is -1",
       [&] { return gain = {}, gain.kind = 1, gain.time_factor = -1, run_gain(); }},
      {"eps is 0", [&] { return gain = {}, gain.kind = RANKONE_GAIN_KACZMARZ, run_gain(); }},
      {"form is 3", [&] { return decay = {}, decay.form = 3, run_decay(); }},
      {"channel is 2", [&] { return decay = {}, decay.channel = 2, run_decay(); }},
      {"the limits of dt are 0 and 0", [&] { return decay = {}, decay.x = t, run_decay(); }},
      {"clamp is 0",
       [&] { return decay = {}, decay.x = t, decay.form = RANKONE_DECAY_LOGSIGMOID, run_decay(); }},
      {"kind is 2", [&] { return precondition.kind = 2, run_precondition(); }},
      {"normalize is 7",
       [&] { return precondition.kind = 0, precondition.normalize = 7, run_precondition(); }},
      {"numbers is null",
       [&] { return rankone_precondition_saved(context_, sequences, &precondition, nullptr); }},
      {"saved has shape [3]",  // on a CPU nothing is saved
       [&] {
         precondition.normalize = 0;
         precondition.k = precondition.target = precondition_out.out = c_tensor(keys);
         precondition.center = c_tensor(center);
         precondition.x = 1.5;
         precondition.eps = 1e-6;
         std::int64_t numbers = 7;
         EXPECT_EQ(rankone_precondition_saved(context_, sequences, &precondition, &numbers),
                   RANKONE_OK);
         EXPECT_EQ(numbers, 0);
         precondition_out.saved = c_tensor(some);
         return run_precondition();
       }},
  };
  for (const Row& row : table) {
    EXPECT_EQ(row.run(), RANKONE_INVALID_ARGUMENT) << row.message;
    expect_message(row.message);
  }
}

TEST_F(Refused, ContextsAndSequences) {
  struct Row {
    rankone_options options;
    rankone_status status;
    const char* message;
  };
#if defined(RANKONE_WITH_CUDA)  // there may be a GPU 0, but not this one
  const Row cuda{{RANKONE_CUDA, 4096, 0, 0}, RANKONE_UNSUPPORTED, "there is no GPU"};
#else
  const Row cuda{{RANKONE_CUDA, 0, 0, 0}, RANKONE_UNSUPPORTED, "no CUDA backend"};
#endif
  for (const Row& row : {cuda, Row{{7, 0, 0, 0}, RANKONE_INVALID_ARGUMENT, "device is 7"},
                         Row{{RANKONE_CPU, 1, 0, 0}, RANKONE_INVALID_ARGUMENT, "device_index is 1"},
                         Row{{RANKONE_CPU, 0, -1, 0}, RANKONE_INVALID_ARGUMENT, "threads is -1"},
                         Row{{RANKONE_CPU, 0, 0, 4}, RANKONE_INVALID_ARGUMENT, "precision is 4"}}) {
    rankone_context* context = context_;
    char text[200];
    EXPECT_EQ(rankone_context_create(&row.options, &context, text, sizeof text), row.status);
    EXPECT_EQ(context, nullptr);
    EXPECT_NE(std::string(text).find(row.message), std::string::npos) << text;
    char cut_short[8];
    rankone_context_create(&row.options, &context, cut_short, sizeof cut_short);
    EXPECT_STREQ(cut_short, "[rankon");
  }
  EXPECT_EQ(rankone_context_create(nullptr, nullptr, nullptr, 0), RANKONE_INVALID_ARGUMENT);

  const std::vector<std::vector<std::int64_t>> bad = {{1, 2}, {0, 3, 2}, {}};
  for (const auto& boundaries : bad) {
    rankone_sequences* made = nullptr;
    EXPECT_EQ(rankone_sequences_packed(context_, boundaries.data(),
                                       static_cast<std::int64_t>(boundaries.size()), &made),
              RANKONE_INVALID_ARGUMENT);
    EXPECT_EQ(made, nullptr);
    expect_message("cu_seqlens");
  }
  rankone_sequences* made = nullptr;
  EXPECT_EQ(rankone_sequences_dense(context_, -1, 3, &made), RANKONE_INVALID_ARGUMENT);
  EXPECT_EQ(rankone_sequences_dense(context_, INT64_MAX, INT64_MAX, &made),
            RANKONE_INVALID_ARGUMENT);
  EXPECT_EQ(made, nullptr);
}

}  // namespace
}  // namespace rankone::test
