// Attention from C: forward and backward, with the bytes that pass between slow memory and the
// worktop, and the same result joined from two halves of the keys.
#include <flashwok/c_api.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>

enum { SEQLEN_Q = 3, SEQLEN_K = 8, NUM_HEADS = 1, HEAD_DIM = 4 };
enum { ROWS = SEQLEN_Q * NUM_HEADS, KEYS = SEQLEN_K * NUM_HEADS };

static char message[256];

static int Succeeds(const char* call, flashwok_status status) {
  if (status != FLASHWOK_STATUS_OK) printf("%s: status %d: %s\n", call, (int)status, message);
  return status == FLASHWOK_STATUS_OK;
}

static flashwok_tensor Floats(float* data, int64_t seqlen) {
  const int64_t shape[4] = {1, seqlen, NUM_HEADS, HEAD_DIM};
  return flashwok_contiguous(data, FLASHWOK_DTYPE_FLOAT32, 4, shape);
}

static flashwok_tensor Scalars(float* data) {
  const int64_t shape[3] = {1, NUM_HEADS, SEQLEN_Q};
  return flashwok_contiguous(data, FLASHWOK_DTYPE_FLOAT32, 3, shape);
}

static void CountBytes(const flashwok_event* event, void* observer_data) {
  *(int64_t*)observer_data += event->bytes;
}

// O and lse over `seqlen_k` of the keys.
static flashwok_status Attend(float* q, float* k, float* v, int64_t seqlen_k, float* o,
                              float* lse) {
  flashwok_problem problem;
  flashwok_forward_output output;
  flashwok_problem_init(&problem, sizeof(problem));
  flashwok_forward_output_init(&output, sizeof(output));
  problem.q = Floats(q, SEQLEN_Q);
  problem.k = Floats(k, seqlen_k);
  problem.v = Floats(v, seqlen_k);
  output.o = Floats(o, SEQLEN_Q);
  output.lse = Scalars(lse);
  return flashwok_forward(&problem, &output, NULL, message, sizeof(message));
}

// The halves of the keys apart, then merged: the largest difference from `o`.
static int MergeHalves(float* q, float* k, float* v, const float* o) {
  float o_a[ROWS * HEAD_DIM], o_b[ROWS * HEAD_DIM], lse_a[ROWS], lse_b[ROWS];
  const int half = KEYS / 2 * HEAD_DIM;
  const flashwok_tensor a = Floats(o_a, SEQLEN_Q), b = Floats(o_b, SEQLEN_Q);
  const flashwok_tensor scalars_a = Scalars(lse_a), scalars_b = Scalars(lse_b);
  double error = 0.0;
  if (!Succeeds("first half", Attend(q, k, v, SEQLEN_K / 2, o_a, lse_a)) ||
      !Succeeds("second half", Attend(q, k + half, v + half, SEQLEN_K / 2, o_b, lse_b)) ||
      !Succeeds("merge", flashwok_merge_states(&a, &scalars_a, &b, &scalars_b, &a, &scalars_a,
                                               message, sizeof(message)))) {
    return 0;
  }
  for (int n = 0; n < ROWS * HEAD_DIM; ++n) error = fmax(error, fabs(o_a[n] - o[n]));
  printf("two halves merged: largest difference %.1e\n", error);
  return error <= 1e-6;
}

int main(void) {
  float q[ROWS * HEAD_DIM], k[KEYS * HEAD_DIM], v[KEYS * HEAD_DIM], dout[ROWS * HEAD_DIM];
  float o[ROWS * HEAD_DIM], lse[ROWS];
  float dq[ROWS * HEAD_DIM], dk[KEYS * HEAD_DIM], dv[KEYS * HEAD_DIM];
  for (int n = 0; n < ROWS * HEAD_DIM; ++n) {
    q[n] = sinf(0.7f * (float)n);
    dout[n] = 1.0f;
  }
  for (int n = 0; n < KEYS * HEAD_DIM; ++n) {
    k[n] = sinf(1.1f * (float)n);
    v[n] = cosf(0.3f * (float)n);
  }

  flashwok_problem problem;
  flashwok_forward_output output;
  flashwok_gradients gradients;
  flashwok_execution execution;
  flashwok_problem_init(&problem, sizeof(problem));
  flashwok_forward_output_init(&output, sizeof(output));
  flashwok_gradients_init(&gradients, sizeof(gradients));
  flashwok_execution_init(&execution, sizeof(execution));
  problem.q = Floats(q, SEQLEN_Q);
  problem.k = Floats(k, SEQLEN_K);
  problem.v = Floats(v, SEQLEN_K);
  output.o = Floats(o, SEQLEN_Q);
  output.lse = Scalars(lse);
  gradients.dq = Floats(dq, SEQLEN_Q);
  gradients.dk = Floats(dk, SEQLEN_K);
  gradients.dv = Floats(dv, SEQLEN_K);
  const flashwok_tensor dout_view = Floats(dout, SEQLEN_Q);
  int64_t bytes = 0;
  execution.num_threads = 1;  // one thread: CountBytes needs no lock
  execution.observer = CountBytes;
  execution.observer_data = &bytes;
  if (!Succeeds("forward and backward",
                flashwok_forward_backward(&problem, &output, &dout_view, &gradients, &execution,
                                          message, sizeof(message)))) {
    return 1;
  }

  printf("FlashWok %s: %lld bytes moved\n", flashwok_version(), (long long)bytes);
  for (int i = 0; i < ROWS; ++i) {
    printf("row %d: lse %7.4f, O", i, lse[i]);
    for (int c = 0; c < HEAD_DIM; ++c) printf(" %7.4f", o[i * HEAD_DIM + c]);
    printf("\n");
  }
  // Each row of P sums to 1, so that with dO = 1 each column of dV sums to the number of rows.
  double sum = 0.0;
  for (int j = 0; j < KEYS; ++j) sum += dv[j * HEAD_DIM];
  printf("a column of dV sums to %.6f, of %d rows\n", sum, ROWS);

  if (!MergeHalves(q, k, v, o)) return 1;
  problem.window_left = -2;
  if (flashwok_forward(&problem, &output, NULL, message, sizeof(message)) == FLASHWOK_STATUS_OK) {
    return 1;
  }
  printf("a refusal: %s\n", message);
  return bytes > 0 && fabs(sum - ROWS) <= 1e-5 ? 0 : 1;
}
