/* Kaczmarz Linear Attention through the C interface: a prompt is read in one call, then tokens one
 * by one, the state updated in place; the same tokens in one call give the same outputs.
 *
 *   cc kla_step.c $(pkg-config --cflags --libs rankone) -lm -o kla_step && ./kla_step
 */
#include <math.h>
#include <rankone/rankone.h>
#include <stdio.h>
#include <stdlib.h>

enum { kHeads = 2, kKey = 32, kValue = 48, kPrompt = 100, kTokens = 116 };

static rankone_context* context;

static void check(rankone_status status) {
  if (status == RANKONE_OK) return;
  fprintf(stderr, "kla_step: %s\n", rankone_last_error(context));
  exit(1);
}

static float* floats(size_t count) {
  float* memory = calloc(count, sizeof *memory);
  if (memory == NULL) exit(1);
  return memory;
}

/* Some numbers in (-1, 1). */
static float* noise(size_t count, unsigned seed) {
  float* values = floats(count);
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
  return values;
}

/* Rows `begin` to `end` of a [T, heads, channels] array. */
static rankone_tensor rows(float* data, int begin, int end, int heads, int channels) {
  const int64_t shape[3] = {end - begin, heads, channels};
  const int rank = channels > 0 ? 3 : 2; /* no channels: [T, heads] */
  const size_t row = (size_t)heads * (size_t)(channels > 0 ? channels : 1);
  return rankone_row_major(data + (size_t)begin * row, RANKONE_F32, rank, shape);
}

typedef struct {
  float *q, *k, *v, *g, *x; /* what a layer computes from its input: query to gain logits */
  float *e, *scaled_v, *b;  /* what the gain makes of them */
} layer;

/* The Kaczmarz gain over all tokens: keys and values are divided by |k|. */
static void gain(const layer* l) {
  rankone_sequences* all = NULL;
  check(rankone_sequences_dense(context, 1, kTokens, &all));
  const rankone_gain_inputs in = {.kind = RANKONE_GAIN_KACZMARZ,
                                  .x = rows(l->x, 0, kTokens, kHeads, 0),
                                  .e = rows(l->k, 0, kTokens, kHeads, kKey),
                                  .w = rows(l->k, 0, kTokens, kHeads, kKey),
                                  .v = rows(l->v, 0, kTokens, kHeads, kValue),
                                  .eps = 1e-6};
  const rankone_gain_outputs out = {.b = rows(l->b, 0, kTokens, kHeads, 0),
                                    .e = rows(l->e, 0, kTokens, kHeads, kKey),
                                    .v = rows(l->scaled_v, 0, kTokens, kHeads, kValue)};
  size_t bytes = 0;
  check(rankone_gain(context, all, &in, &out, &(rankone_call){.query = &bytes}));
  void* workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  check(rankone_gain(context, all, &in, &out,
                     &(rankone_call){.workspace = workspace, .workspace_bytes = bytes}));
  free(workspace);
  rankone_sequences_free(all);
}

/* Reads the tokens `begin` to `end`; the state goes in and out, the outputs into their rows of o.
 */
static void read_tokens(const layer* l, int begin, int end, float* state, float* o) {
  rankone_sequences* piece = NULL;
  check(rankone_sequences_dense(context, 1, end - begin, &piece));
  const int64_t state_shape[4] = {1, kHeads, kKey, kValue};
  const rankone_tensor s = rankone_row_major(state, RANKONE_F32, 4, state_shape);
  const rankone_two_key_inputs in = {.q = rows(l->q, begin, end, kHeads, kKey),
                                     .e = rows(l->e, begin, end, kHeads, kKey),
                                     .w = rows(l->e, begin, end, kHeads, kKey),
                                     .v = rows(l->scaled_v, begin, end, kHeads, kValue),
                                     .g = rows(l->g, begin, end, kHeads, 0),
                                     .b = rows(l->b, begin, end, kHeads, 0),
                                     .initial_state = s,
                                     .scale = 1.0 / sqrt((double)kKey)};
  const rankone_two_key_outputs out = {.o = rows(o, begin, end, kHeads, kValue), .final_state = s};
  size_t bytes = 0;
  check(rankone_two_key(context, piece, &in, &out, &(rankone_call){.query = &bytes}));
  void* workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  const rankone_call call = {.workspace = workspace, .workspace_bytes = bytes};
  if (end - begin == 1) {
    check(rankone_two_key_step(context, piece, &in, &out.o, &call));
  } else {
    check(rankone_two_key(context, piece, &in, &out, &call));
  }
  free(workspace);
  rankone_sequences_free(piece);
}

int main(void) {
  char message[256];
  if (rankone_context_create(NULL, &context, message, sizeof message) != RANKONE_OK) {
    fprintf(stderr, "kla_step: %s\n", message);
    return 1;
  }
  const size_t n = (size_t)kTokens * kHeads;
  const layer l = {.q = noise(n * kKey, 1),
                   .k = noise(n * kKey, 2),
                   .v = noise(n * kValue, 3),
                   .g = noise(n, 4),
                   .x = noise(n, 5),
                   .e = floats(n * kKey),
                   .scaled_v = floats(n * kValue),
                   .b = floats(n)};
  for (size_t i = 0; i < n; ++i) l.g[i] = -0.05f * (1.0f + l.g[i]); /* log decays are <= 0 */
  gain(&l);

  float* once = floats(n * kValue);
  float* stepped = floats(n * kValue);
  float* state = floats((size_t)kHeads * kKey * kValue);
  float* carried = floats((size_t)kHeads * kKey * kValue);
  read_tokens(&l, 0, kTokens, state, once);
  read_tokens(&l, 0, kPrompt, carried, stepped);
  for (int t = kPrompt; t < kTokens; ++t) read_tokens(&l, t, t + 1, carried, stepped);

  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < n * kValue; ++i) {
    error += (double)(once[i] - stepped[i]) * (double)(once[i] - stepped[i]);
    norm += (double)once[i] * (double)once[i];
  }
  printf("rankone %s: %d tokens at once and %d + %d steps differ by %.1e\n", rankone_version(),
         kTokens, kPrompt, kTokens - kPrompt, sqrt(error / norm));

  float* all[] = {l.q, l.k, l.v, l.g, l.x, l.e, l.scaled_v, l.b, once, stepped, state, carried};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
  rankone_context_free(context);
  return norm > 0 && error <= 1e-10 * norm ? 0 : 1;
}
