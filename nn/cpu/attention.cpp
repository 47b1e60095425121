// Softmax attention in blocks with a running softmax (Dao et al., arXiv 2205.14135): a task holds
// the scores of one block of queries and one block of keys. Blocks of keys start at multiples of
// kKeyBlock whatever the queries, and keys that a query does not see add exact zeros, so a row has
// the same bits in a prefill, in pieces and one token at a time.

#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/arguments.hpp"
#include "nn/cpu/cpu_backend.hpp"
#include "nn/cpu/gemm.hpp"
#include "nn/cpu/softmax.hpp"

namespace rankone::nn {
namespace {

constexpr std::int64_t kQueryBlock = 64;
constexpr std::int64_t kKeyBlock = 128;

struct Range {
  std::int64_t begin, end;
  std::int64_t count() const { return end - begin; }
};

// Rows of one sequence, counted from its start.
struct RowBlock {
  std::int64_t sequence;
  Range rows;
};

// The rows of every sequence cut into blocks.
struct RowBlocks {
  RowBlocks(Context& context, const Sequences& sequences, std::int64_t block) {
    for (std::int64_t s = 0; s < sequences.count(); ++s) {
      count += (sequences.length(s) + block - 1) / block;
    }
    blocks = static_cast<RowBlock*>(
        context.arena().allocate(static_cast<std::size_t>(count) * sizeof(RowBlock)));
    if (context.planning()) return;
    RowBlock* next = blocks;
    for (std::int64_t s = 0; s < sequences.count(); ++s) {
      const std::int64_t length = sequences.length(s);
      for (std::int64_t begin = 0; begin < length; begin += block) {
        *next++ = {s, {begin, std::min(length, begin + block)}};
      }
    }
  }

  // Late rows see the most keys: they come first, so that no thread is left with them at the end.
  const RowBlock& operator[](std::int64_t i) const { return blocks[count - 1 - i]; }

  RowBlock* blocks;
  std::int64_t count = 0;
};

// Where the keys and values of one head of one sequence lie.
struct Keys {
  const float* k;
  const float* v;
  std::int64_t stride;
};

// What a call computes on, and the products of one block of it.
class Heads {
 public:
  Heads(Context& context, const Sequences& sequences, const Attention& args)
      : args_(args),
        sequences_(sequences),
        heads_(args.q.dim(-2)),
        key_heads_(args.k.dim(-2)),
        width_(args.q.dim(-1)),
        capacity_(args.cache_k.defined() ? args.cache_k.dim(2) : 0) {
    const GemmShape shapes[] = {{kQueryBlock, kKeyBlock, width_},
                                {kQueryBlock, width_, kKeyBlock},
                                {kKeyBlock, width_, kQueryBlock}};
    std::int64_t most = 0;
    for (const GemmShape& shape : shapes) {
      most = std::max(most, gemm_scratch(gemm_kernels(), shape));
    }
    scratch_size_ = kPlanes * kScores + most;
    const std::int64_t threads = context.threads().size();
    scratch_ = context.empty({threads, scratch_size_}, Dtype::f32).data<float>();
  }

  std::int64_t heads() const { return heads_; }
  std::int64_t key_heads() const { return key_heads_; }
  std::int64_t group() const { return heads_ / key_heads_; }
  std::int64_t width() const { return width_; }
  std::int64_t query_stride() const { return heads_ * width_; }
  std::int64_t key_stride() const { return key_heads_ * width_; }

  // The index of an element of q, o and their gradients, and of k and v.
  std::int64_t query(std::int64_t sequence, std::int64_t row, std::int64_t head) const {
    return ((sequences_.begin(sequence) + row) * heads_ + head) * width_;
  }
  std::int64_t key(std::int64_t sequence, std::int64_t row, std::int64_t key_head) const {
    return ((sequences_.begin(sequence) + row) * key_heads_ + key_head) * width_;
  }

  // Keys that lie before the first row of the sequence.
  std::int64_t before(std::int64_t sequence) const {
    return capacity_ > 0 ? args_.positions.data<std::int64_t>()[sequence] : 0;
  }

  Keys keys(std::int64_t sequence, std::int64_t key_head) const {
    if (args_.cache_k.defined()) {
      const std::int64_t at = (sequence * key_heads_ + key_head) * capacity_ * width_;
      return {args_.cache_k.data<float>() + at, args_.cache_v.data<float>() + at, width_};
    }
    const std::int64_t at = key(sequence, 0, key_head);
    return {args_.k.data<float>() + at, args_.v.data<float>() + at, key_stride()};
  }

  // The keys the query at a position sees.
  Range visible(std::int64_t position) const {
    const std::int64_t first = args_.window == 0 ? 0 : position - args_.window + 1;
    return {std::max<std::int64_t>(0, first), position + 1};
  }

  float* scores(int worker) const { return scratch_ + worker * scratch_size_; }
  float* gradients(int worker) const { return scores(worker) + kScores; }

  void multiply(int worker, const GemmShape& shape, const GemmMatrix& a, const GemmMatrix& b,
                float* c, std::int64_t c_stride, bool accumulate) const {
    gemm_serial(gemm_kernels(), shape, a, b, c, c_stride, accumulate,
                scores(worker) + kPlanes * kScores);
  }

  // scores = left right^T, [rows, keys] with kKeyBlock elements from row to row.
  void products(int worker, std::int64_t rows, std::int64_t keys, const float* left,
                const float* right, std::int64_t right_stride, float* to) const {
    multiply(worker, {rows, keys, width_}, {left, query_stride(), false, Storage::f32},
             {right, right_stride, true, Storage::f32}, to, kKeyBlock, false);
  }

  // Scales the scores of the query at `position` and hides what it does not see; false if it sees
  // none of the block.
  bool mask(float* row, const Range& block, std::int64_t position) const {
    const Range range = visible(position);
    const std::int64_t begin = std::clamp(range.begin, block.begin, block.end);
    const std::int64_t end = std::clamp(range.end, begin, block.end);
    softmax_kernels().mask(row, block.count(), static_cast<float>(args_.scale), begin - block.begin,
                           end - block.begin);
    return begin < end;
  }

  // Calls work(block) for the blocks of keys that queries at these positions see, in order.
  template <class Work>
  void for_keys(const Range& positions, Work&& work) const {
    const std::int64_t end = positions.end;
    std::int64_t begin = visible(positions.begin).begin / kKeyBlock * kKeyBlock;
    for (; begin < end; begin += kKeyBlock) work(Range{begin, std::min(end, begin + kKeyBlock)});
  }

 private:
  static constexpr std::int64_t kScores = kQueryBlock * kKeyBlock;
  static constexpr std::int64_t kPlanes = 2;  // scores and their gradients

  const Attention& args_;
  const Sequences& sequences_;
  std::int64_t heads_, key_heads_, width_, capacity_;
  std::int64_t scratch_size_ = 0;
  float* scratch_ = nullptr;
};

// The running softmax of a block of queries.
struct Running {
  float largest[kQueryBlock];
  float sum[kQueryBlock];

  Running() {
    std::fill_n(largest, kQueryBlock, -std::numeric_limits<float>::infinity());
    std::fill_n(sum, kQueryBlock, 0.0F);
  }

  // Takes the masked scores of row i in, which become e^(score - largest so far); returns by what
  // earlier results shrink.
  float take(std::int64_t i, float* scores, std::int64_t count, bool visible) {
    if (!visible) {
      std::fill_n(scores, count, 0.0F);
      return 1.0F;
    }
    const float now = std::max(largest[i], softmax_kernels().maximum(scores, count));
    const float shrink = largest[i] == now ? 1.0F : std::exp(largest[i] - now);
    sum[i] = sum[i] * shrink + softmax_kernels().exp_sum(scores, count, now, scores);
    largest[i] = now;
    return shrink;
  }
};

void attend(const Heads& heads, const Attention& args, const RowBlock& block, std::int64_t head,
            int worker, float* o) {
  const Keys keys = heads.keys(block.sequence, head / heads.group());
  const std::int64_t first = heads.before(block.sequence) + block.rows.begin;
  const std::int64_t rows = block.rows.count();
  const std::int64_t at = heads.query(block.sequence, block.rows.begin, head);
  const std::int64_t stride = heads.query_stride();
  float* const scores = heads.scores(worker);
  Running running;
  bool started = false;
  heads.for_keys({first, first + rows}, [&](const Range& range) {
    heads.products(worker, rows, range.count(), args.q.data<float>() + at,
                   keys.k + range.begin * keys.stride, keys.stride, scores);
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const row = scores + i * kKeyBlock;
      const bool visible = heads.mask(row, range, first + i);
      const float shrink = running.take(i, row, range.count(), visible);
      if (started && shrink != 1.0F) {
        softmax_kernels().scale(o + at + i * stride, heads.width(), shrink);
      }
    }
    heads.multiply(worker, {rows, heads.width(), range.count()},
                   {scores, kKeyBlock, false, Storage::f32},
                   {keys.v + range.begin * keys.stride, keys.stride, false, Storage::f32}, o + at,
                   stride, started);
    started = true;
  });
  for (std::int64_t i = 0; i < rows; ++i) {
    softmax_kernels().scale(o + at + i * stride, heads.width(), 1.0F / running.sum[i]);
  }
}

// Stores the new keys and values behind those the cache holds.
void append(Context& context, const Sequences& sequences, const Attention& args,
            const Heads& heads) {
  const std::int64_t capacity = args.cache_k.dim(2);
  for (std::int64_t s = 0; s < sequences.count(); ++s) {
    const std::int64_t position = args.positions.data<std::int64_t>()[s];
    Arguments("attention").index("positions", position, capacity - sequences.length(s) + 1);
  }
  context.threads().run(sequences.count() * heads.key_heads(), [&](std::int64_t task, int) {
    const std::int64_t s = task / heads.key_heads();
    const std::int64_t head = task % heads.key_heads();
    for (std::int64_t r = 0; r < sequences.length(s); ++r) {
      const std::int64_t to =
          ((s * heads.key_heads() + head) * capacity + heads.before(s) + r) * heads.width();
      const std::int64_t from = heads.key(s, r, head);
      std::copy_n(args.k.data<float>() + from, heads.width(), args.cache_k.data<float>() + to);
      std::copy_n(args.v.data<float>() + from, heads.width(), args.cache_v.data<float>() + to);
    }
  });
}

// What the passes of the vjp share.
struct Backward {
  const Heads& heads;
  const Attention& args;
  const float* do_;
  const AttentionGrads& grads;
  std::int64_t rows;  // of the call
  float* log_sums;    // [H, R], log of the sum of e^score
  float* means;       // [H, R], o . do: the mean of the gradients of the probabilities

  std::int64_t statistic(const RowBlock& block, std::int64_t head) const {
    return head * rows + heads.query(block.sequence, block.rows.begin, 0) / heads.query_stride();
  }

  // Scores of one block, and the gradients of the probabilities.
  void multiply(const RowBlock& block, std::int64_t head, const Keys& keys, const Range& range,
                int worker) const {
    const std::int64_t at = heads.query(block.sequence, block.rows.begin, head);
    const std::int64_t count = block.rows.count();
    const std::int64_t first = range.begin * keys.stride;
    heads.products(worker, count, range.count(), args.q.data<float>() + at, keys.k + first,
                   keys.stride, heads.scores(worker));
    heads.products(worker, count, range.count(), do_ + at, keys.v + first, keys.stride,
                   heads.gradients(worker));
  }

  // Probabilities and the gradients of the scores, times scale, of one block.
  void differentiate(const RowBlock& block, std::int64_t head, const Keys& keys, const Range& range,
                     int worker) const {
    multiply(block, head, keys, range, worker);
    float* const scores = heads.scores(worker);
    float* const gradients = heads.gradients(worker);
    const std::int64_t statistics = statistic(block, head);
    for (std::int64_t i = 0; i < block.rows.count(); ++i) {
      heads.mask(scores + i * kKeyBlock, range, block.rows.begin + i);
      softmax_kernels().gradient(scores + i * kKeyBlock, gradients + i * kKeyBlock, range.count(),
                                 log_sums[statistics + i], means[statistics + i],
                                 static_cast<float>(args.scale));
    }
  }

  // log_sums and means of a block of queries. The mean is o . do as well, which would save a
  // product; but rounded differently from the gradients it is subtracted from, it leaves the first
  // rows of a sequence, where they are nearly equal, with little but rounding errors.
  void summarise(const RowBlock& block, std::int64_t head, const Keys& keys, int worker) const {
    float* const scores = heads.scores(worker);
    const float* const gradients = heads.gradients(worker);
    const std::int64_t count = block.rows.count();
    float* const mean = means + statistic(block, head);
    std::fill_n(mean, count, 0.0F);
    Running running;
    heads.for_keys(block.rows, [&](const Range& range) {
      multiply(block, head, keys, range, worker);
      for (std::int64_t i = 0; i < count; ++i) {
        float* const row = scores + i * kKeyBlock;
        const bool visible = heads.mask(row, range, block.rows.begin + i);
        const float shrink = running.take(i, row, range.count(), visible);
        mean[i] =
            mean[i] * shrink + softmax_kernels().dot(row, gradients + i * kKeyBlock, range.count());
      }
    });
    for (std::int64_t i = 0; i < count; ++i) {
      mean[i] /= running.sum[i];
      log_sums[statistic(block, head) + i] = running.largest[i] + std::log(running.sum[i]);
    }
  }

  void queries(const RowBlock& block, std::int64_t head, int worker) const {
    const Keys keys = heads.keys(block.sequence, head / heads.group());
    summarise(block, head, keys, worker);
    if (!grads.q.defined()) return;
    const std::int64_t at = heads.query(block.sequence, block.rows.begin, head);
    bool started = false;
    heads.for_keys(block.rows, [&](const Range& range) {
      differentiate(block, head, keys, range, worker);
      heads.multiply(worker, {block.rows.count(), heads.width(), range.count()},
                     {heads.gradients(worker), kKeyBlock, false, Storage::f32},
                     {keys.k + range.begin * keys.stride, keys.stride, false, Storage::f32},
                     grads.q.data<float>() + at, heads.query_stride(), started);
      started = true;
    });
  }

  // dk and dv of a block of keys, from all queries that see it.
  void keys(const RowBlock& block, std::int64_t length, std::int64_t key_head, int worker) const {
    const Keys keys = heads.keys(block.sequence, key_head);
    const std::int64_t to = heads.key(block.sequence, block.rows.begin, key_head);
    const std::int64_t last =
        args.window == 0 ? length : std::min(length, block.rows.end - 1 + args.window);
    bool started = false;
    for (std::int64_t head = key_head * heads.group(); head < (key_head + 1) * heads.group();
         ++head) {
      for (std::int64_t begin = block.rows.begin; begin < last; begin += kQueryBlock) {
        const RowBlock queries = {block.sequence, {begin, std::min(length, begin + kQueryBlock)}};
        differentiate(queries, head, keys, block.rows, worker);
        const std::int64_t from = heads.query(block.sequence, begin, head);
        const GemmShape shape = {block.rows.count(), heads.width(), queries.rows.count()};
        const auto add = [&](const float* left, const float* right, const Tensor& grad) {
          if (!grad.defined()) return;
          heads.multiply(worker, shape, {left, kKeyBlock, true, Storage::f32},
                         {right, heads.query_stride(), false, Storage::f32},
                         grad.data<float>() + to, heads.key_stride(), started);
        };
        add(heads.gradients(worker), args.q.data<float>() + from, grads.k);
        add(heads.scores(worker), do_ + from, grads.v);
        started = true;
      }
    }
  }
};

}  // namespace

void CpuBackend::attention(Context& context, const Sequences& sequences, const Attention& args,
                           const Tensor& o) const {
  const ArenaScope scope(context.arena());
  const Heads heads(context, sequences, args);
  const RowBlocks blocks(context, sequences, kQueryBlock);
  if (context.planning()) return;
  if (args.cache_k.defined()) append(context, sequences, args, heads);
  context.threads().run(blocks.count * heads.heads(), [&](std::int64_t task, int worker) {
    attend(heads, args, blocks[task / heads.heads()], task % heads.heads(), worker,
           o.data<float>());
  });
}

void CpuBackend::attention_vjp(Context& context, const Sequences& sequences, const Attention& args,
                               const Tensor& /*o*/, const Tensor& do_,
                               const AttentionGrads& grads) const {
  const ArenaScope scope(context.arena());
  const Heads heads(context, sequences, args);
  const RowBlocks queries(context, sequences, kQueryBlock);
  const RowBlocks keys(context, sequences, kKeyBlock);
  const std::int64_t rows = sequences.rows();
  auto* const log_sums = context.empty({heads.heads(), rows}, Dtype::f32).data<float>();
  auto* const means = context.empty({heads.heads(), rows}, Dtype::f32).data<float>();
  if (context.planning()) return;
  const Backward backward = {heads, args, do_.data<float>(), grads, rows, log_sums, means};
  context.threads().run(queries.count * heads.heads(), [&](std::int64_t task, int worker) {
    backward.queries(queries[task / heads.heads()], task % heads.heads(), worker);
  });
  if (!grads.k.defined() && !grads.v.defined()) return;
  context.threads().run(keys.count * heads.key_heads(), [&](std::int64_t task, int worker) {
    const RowBlock& block = keys[task / heads.key_heads()];
    backward.keys(block, sequences.length(block.sequence), task % heads.key_heads(), worker);
  });
}

}  // namespace rankone::nn
