// The C interface of FlashWok, in C11 that is also C++: plain structs, and functions that return a
// status code and never throw. It covers all of attention.h, with the same meaning and the same
// bits.
//
//   flashwok_problem problem;
//   flashwok_problem_init(&problem, sizeof(problem));
//   const int64_t shape[4] = {batch, seqlen, num_heads, head_dim};
//   problem.q = flashwok_contiguous(q, FLASHWOK_DTYPE_FLOAT32, 4, shape);  // k and v as well
//   flashwok_forward_output output;
//   flashwok_forward_output_init(&output, sizeof(output));
//   output.o = flashwok_contiguous(o, FLASHWOK_DTYPE_FLOAT32, 4, shape);
//   char message[256];
//   if (flashwok_forward(&problem, &output, NULL, message, sizeof(message)) != FLASHWOK_STATUS_OK)
//     puts(message);
//
// Errors. A function that takes `message` copies the reason of a refusal there: at most
// message_size bytes, cut if need be and always closed by a NUL; after a success, the empty text.
// A null message or a size of 0 is no error: nothing is copied. A null pointer is refused unless
// its comment says that it may be null. A call that is refused writes nothing else.
//
// Growth. A struct that begins with struct_size grows at its end only, and a new field means its
// default when it is zero. X_init(x, sizeof(*x)) sets struct_size and every default, and zeroes the
// rest; it returns FLASHWOK_STATUS_INVALID_ARGUMENT, having written nothing, when x is null or the
// size is below that of the struct's first version. A struct of an older header is taken as it is;
// one of a newer header too, unless it sets a field that this library does not know
// (FLASHWOK_STATUS_UNSUPPORTED). flashwok_tensor and flashwok_rejection never grow.
//
// Calls are thread-safe. Flags are 0 for no, else yes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "flashwok/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t flashwok_status;
enum {
  FLASHWOK_STATUS_OK = 0,
  FLASHWOK_STATUS_INVALID_ARGUMENT = 1,  // a value breaks the contract; the message names it
  FLASHWOK_STATUS_UNSUPPORTED = 2,       // valid, but this kernel or device cannot run it
  FLASHWOK_STATUS_OUT_OF_MEMORY = 3,     // needs more memory than allowed or than there is
  FLASHWOK_STATUS_INTERNAL = 4,          // a failure of the system below
  FLASHWOK_STATUS_CANCELLED = 5          // flashwok_execution.stop ended the call
};

typedef int32_t flashwok_dtype;
enum {
  FLASHWOK_DTYPE_FLOAT32 = 0,
  FLASHWOK_DTYPE_FLOAT16 = 1,
  FLASHWOK_DTYPE_BFLOAT16 = 2,
  FLASHWOK_DTYPE_FLOAT8_E4M3 = 3,  // finite, no infinity (OCP "e4m3fn")
  FLASHWOK_DTYPE_FLOAT8_E5M2 = 4,
  FLASHWOK_DTYPE_BOOL = 5,  // one byte, zero or not zero
  FLASHWOK_DTYPE_INT32 = 6
};

typedef int32_t flashwok_device_type;
enum { FLASHWOK_DEVICE_CPU = 0, FLASHWOK_DEVICE_CUDA = 1 };

typedef int32_t flashwok_algorithm;
enum {
  FLASHWOK_ALGORITHM_AUTO = 0,      // flashwok_plan chooses
  FLASHWOK_ALGORITHM_STANDARD = 1,  // S and P pass through slow memory
  FLASHWOK_ALGORITHM_V1 = 2,        // Dao et al. 2022, arXiv:2205.14135
  FLASHWOK_ALGORITHM_V2 = 3,        // Dao 2023, arXiv:2307.08691
  FLASHWOK_ALGORITHM_V3 = 4         // Shah et al. 2024, arXiv:2407.08608
};

typedef int32_t flashwok_causal;
enum {
  FLASHWOK_CAUSAL_NONE = 0,
  FLASHWOK_CAUSAL_BOTTOM_RIGHT = 1,  // row i sees keys j <= i + seqlen_k - seqlen_q
  FLASHWOK_CAUSAL_TOP_LEFT = 2       // row i sees keys j <= i
};

typedef int32_t flashwok_pass;
enum { FLASHWOK_PASS_FORWARD = 0, FLASHWOK_PASS_BACKWARD = 1 };

// What an observer is told, one event for each tile moved or computed.
typedef int32_t flashwok_event_kind;
enum {
  FLASHWOK_EVENT_LOAD = 0,      // slow memory -> worktop; `bytes`
  FLASHWOK_EVENT_STORE = 1,     // worktop -> slow memory; `bytes`
  FLASHWOK_EVENT_PRODUCT = 2,   // a matrix product of two tiles; `flops`
  FLASHWOK_EVENT_SOFTMAX = 3,   // row_max, exp2, row_sum of a score tile
  FLASHWOK_EVENT_RESCALE = 4,   // the old part of O corrected for a larger maximum
  FLASHWOK_EVENT_FINALIZE = 5,  // O divided by row_sum
  FLASHWOK_EVENT_SKIP = 6,      // a tile that no row of the Q tile sees
  // Not for an observer, but of a GPU's timeline (docs/trace.md):
  FLASHWOK_EVENT_ISSUE = 7,     // a load, a store or a product given to the unit that does it
  FLASHWOK_EVENT_WAIT = 8,      // for what such a unit, or another role, makes or frees
  FLASHWOK_EVENT_TURN = 9,      // waited for the turn at the tensor core
  FLASHWOK_EVENT_PACK = 10,     // a tile rounded to 16 bits: P for its product, O for its store
  FLASHWOK_EVENT_SCHEDULE = 11  // the next work tile found
};

// Which tensor an event touches. For a product: the tensor that it adds to.
typedef int32_t flashwok_role;
enum {
  FLASHWOK_ROLE_Q = 0,
  FLASHWOK_ROLE_K = 1,
  FLASHWOK_ROLE_V = 2,
  FLASHWOK_ROLE_O = 3,
  FLASHWOK_ROLE_S = 4,
  FLASHWOK_ROLE_P = 5,
  FLASHWOK_ROLE_LSE = 6,
  FLASHWOK_ROLE_ROW_MAX = 7,
  FLASHWOK_ROLE_ROW_SUM = 8,
  FLASHWOK_ROLE_DO = 9,
  FLASHWOK_ROLE_DQ = 10,
  FLASHWOK_ROLE_DK = 11,
  FLASHWOK_ROLE_DV = 12,
  FLASHWOK_ROLE_DP = 13,
  FLASHWOK_ROLE_DS = 14,
  FLASHWOK_ROLE_D = 15,
  FLASHWOK_ROLE_BIAS = 16,
  FLASHWOK_ROLE_MASK = 17,
  FLASHWOK_ROLE_DBIAS = 18,
  FLASHWOK_ROLE_PARTIAL = 19,
  FLASHWOK_ROLE_DLSE = 20
};

enum {
  FLASHWOK_MAX_RANK = 4,
  FLASHWOK_NAME_SIZE = 64,  // bytes of a name in a struct, with its NUL
  FLASHWOK_TEXT_SIZE = 448  // bytes of a longer text in a struct, with its NUL
};

// A view: pointer, shape and strides. All zero (rank 0) is an absent tensor.
typedef struct flashwok_tensor {
  void* data;  // aligned to the dtype; may be null when there is no element
  flashwok_dtype dtype;
  int32_t rank;                        // 0 to FLASHWOK_MAX_RANK
  int64_t shape[FLASHWOK_MAX_RANK];    // the first `rank` count
  int64_t strides[FLASHWOK_MAX_RANK];  // in elements; innermost 1; 0 broadcasts an input
  flashwok_device_type device_type;
  int32_t device_index;
} flashwok_tensor;

// A row-major view on the CPU of `shape`, which has `rank` extents. It is not checked here: the
// call that takes the tensor names what is wrong with it.
FLASHWOK_EXPORT flashwok_tensor flashwok_contiguous(void* data, flashwok_dtype dtype, int32_t rank,
                                                    const int64_t* shape);

// Bytes of an element; 0 for an unknown dtype.
FLASHWOK_EXPORT int32_t flashwok_item_size(flashwok_dtype dtype);

// What is to be computed. Scores, in this order: s = softmax_scale * q.k -> softcap -> + bias and
// ALiBi -> mask (causal, window, boolean, key lengths) -> softmax. A row that sees no key gives
// O = 0, lse = -inf and zero gradients. q, k and v are needed, the other tensors optional.
typedef struct flashwok_problem {
  size_t struct_size;

  flashwok_tensor q;  // [batch, seqlen_q, num_heads, head_dim]; varlen: [total_q, num_heads,
                      // head_dim]
  flashwok_tensor k;  // [batch, seqlen_k, num_heads_kv, head_dim]; varlen: [total_k, num_heads_kv,
                      // head_dim]; paged: [num_pages, page_size, num_heads_kv, head_dim]
  flashwok_tensor v;  // as k, with head_dim_v

  // Varlen: sequence b owns rows [cu_seqlens[b], cu_seqlens[b + 1]). Both or neither.
  flashwok_tensor cu_seqlens_q;  // int32 [batch + 1]
  flashwok_tensor cu_seqlens_k;  // int32 [batch + 1]
  flashwok_tensor seqused_k;     // int32 [batch]: only the first seqused_k[b] keys exist
  // Forward: key j of sequence b lies in page page_table[b, j / page_size]. Needs seqused_k.
  flashwok_tensor page_table;  // int32 [batch, max_pages]

  // Each of the first three axes of bias and mask may be 1, which broadcasts it.
  flashwok_tensor bias;          // float32 or q's dtype [batch, num_heads, seqlen_q, seqlen_k]
  flashwok_tensor mask;          // bool, keep where true [batch, num_heads, seqlen_q, seqlen_k]
  flashwok_tensor alibi_slopes;  // float32 [num_heads] or [batch, num_heads]: adds
                                 // -slope * |i + seqlen_k - seqlen_q - j|

  // float8 inputs stand for value * descale. float32 [batch, num_heads_kv]; absent: 1.
  flashwok_tensor q_descale, k_descale, v_descale;

  double softmax_scale;       // finite; only read when has_softmax_scale
  int32_t has_softmax_scale;  // flag; no: 1 / sqrt(head_dim)
  flashwok_causal causal;
  int64_t window_left;   // keys left of the diagonal, inclusive; -1 (default): unlimited
  int64_t window_right;  // keys right of the diagonal; -1 (default): unlimited
  double softcap;        // softcap * tanh(s / softcap); 0: off

  flashwok_algorithm algorithm;
  int32_t num_splits;     // of the keys (V2, V3 forward), to 256; 0: chosen, no bit depends on it
  int32_t deterministic;  // flag; backward: same bits from run to run (on the CPU always so)

  // Philox4x32-10: the same (seed, offset) gives the same mask forward and backward, everywhere.
  double dropout_p;  // from 0 to below 1
  uint64_t dropout_seed;
  uint64_t dropout_offset;
} flashwok_problem;

typedef struct flashwok_forward_output {
  size_t struct_size;
  flashwok_tensor o;    // [batch, seqlen_q, num_heads, head_dim_v] (varlen: [total_q, ...]); q's
                        // dtype, float32, or for float8 inputs bfloat16, float16 or float32
  flashwok_tensor lse;  // optional float32 [batch, num_heads, seqlen_q] (varlen: [num_heads,
                        // total_q]), natural log
  // V1 only, optional, shaped like lse: the running maximum and sum that V1 keeps of each row.
  flashwok_tensor row_max, row_sum;
} flashwok_forward_output;

typedef struct flashwok_backward_input {
  size_t struct_size;
  flashwok_tensor o, lse, dout;      // o and lse as flashwok_forward gave them; dout as o
  flashwok_tensor dlse;              // optional, shaped like lse: the gradient that arrives at lse
  flashwok_tensor row_max, row_sum;  // V1 only, optional
} flashwok_backward_input;

typedef struct flashwok_gradients {
  size_t struct_size;
  flashwok_tensor dq, dk, dv;  // shaped like q, k, v; q's dtype or float32
  flashwok_tensor dbias;       // optional float32, shaped like bias; broadcast axes are summed
} flashwok_gradients;

// Times are nanoseconds of a steady clock; t0 counts from the start of the call. The library makes
// this struct, and later versions may add fields at its end.
typedef struct flashwok_event {
  int64_t t0;
  int64_t duration;
  int64_t bytes;
  int64_t flops;
  flashwok_event_kind kind;
  flashwok_role role;
  int32_t stage;   // which buffer of a multi-stage pipeline
  int32_t masked;  // flag
  int32_t track;   // the worker
  int32_t head;    // batch * num_heads + head (of Q)
  int32_t q_tile;  // -1: none
  int32_t k_tile;  // -1: none
} flashwok_event;

// Called by the workers of a call, concurrently: the events of one track come from one thread, in
// order. `event` lives until it returns. It must return: no exception, no longjmp.
typedef void (*flashwok_observer)(const flashwok_event* event, void* observer_data);

// Asked between tiles by the thread that made the call, on the CPU. Not 0 ends the call with
// FLASHWOK_STATUS_CANCELLED; its results then hold anything. It must return, as an observer must.
typedef int32_t (*flashwok_stop)(void* stop_data);

// How to run it.
typedef struct flashwok_execution {
  size_t struct_size;
  void* workspace;         // scratch, aligned to 64; null: allocated by the call
  size_t workspace_bytes;  // of it, at least flashwok_plan_result.workspace_bytes
  size_t workspace_limit;  // bytes; a request that needs more scratch is refused; default 16 GiB
  int32_t num_threads;     // CPU workers, to 4096; 0: as many cores as the work is worth
  int32_t tile_q;          // rows of a tile, to 1024; 0: from the kernel's table
  int32_t tile_kv;         // keys of a tile, to 256; 0: from the kernel's table
  const char* kernel;      // the one kernel to take in its pass, by its name; null or "": any
  flashwok_observer observer;  // may be null
  void* observer_data;         // handed to observer
  void* stream;                // CUDA; null on the CPU
  flashwok_stop stop;          // may be null
  void* stop_data;             // handed to stop
} flashwok_execution;

// A kernel that was passed over, and why. Longer texts are cut.
typedef struct flashwok_rejection {
  char kernel[FLASHWOK_NAME_SIZE];
  char reason[FLASHWOK_TEXT_SIZE];
} flashwok_rejection;

typedef struct flashwok_plan_result {
  size_t struct_size;
  // The caller sets these: an array for the first rejections_capacity rejections, or null and 0.
  flashwok_rejection* rejections;
  size_t rejections_capacity;

  size_t num_rejections;            // how many there are, whatever the capacity
  char kernel[FLASHWOK_NAME_SIZE];  // e.g. "cpu_forward_v2"; empty: none runs
  flashwok_algorithm algorithm;     // of that kernel
  int32_t tile_q, tile_kv;
  int32_t num_splits;
  int32_t num_threads;
  size_t workspace_bytes;  // of scratch
} flashwok_plan_result;

// One kernel of the library.
typedef struct flashwok_kernel_info {
  size_t struct_size;
  char name[FLASHWOK_NAME_SIZE];
  char dtypes[FLASHWOK_TEXT_SIZE];       // of the inputs: "float32 float16 bfloat16"
  char requirement[FLASHWOK_TEXT_SIZE];  // instruction set beyond the baseline, or empty
  flashwok_pass pass;
  flashwok_algorithm algorithm;
  flashwok_device_type device_type;
  int32_t available;  // flag: on this machine
} flashwok_kernel_info;

FLASHWOK_EXPORT flashwok_status flashwok_problem_init(flashwok_problem* problem,
                                                      size_t struct_size);
FLASHWOK_EXPORT flashwok_status flashwok_forward_output_init(flashwok_forward_output* output,
                                                             size_t struct_size);
FLASHWOK_EXPORT flashwok_status flashwok_backward_input_init(flashwok_backward_input* input,
                                                             size_t struct_size);
FLASHWOK_EXPORT flashwok_status flashwok_gradients_init(flashwok_gradients* gradients,
                                                        size_t struct_size);
FLASHWOK_EXPORT flashwok_status flashwok_execution_init(flashwok_execution* execution,
                                                        size_t struct_size);
FLASHWOK_EXPORT flashwok_status flashwok_plan_result_init(flashwok_plan_result* result,
                                                          size_t struct_size);
FLASHWOK_EXPORT flashwok_status flashwok_kernel_info_init(flashwok_kernel_info* info,
                                                          size_t struct_size);

// Which kernel flashwok_forward or flashwok_backward would run, with what scratch; or, by the
// returned status, why none. It reads shapes, strides, dtypes and options; of the tensors' contents
// only cu_seqlens and seqused_k, when their data is given. `execution` may be null: all defaults.
// `result` is written unless an argument of this call itself is refused (a null pointer, a
// struct_size, an enum out of range).
FLASHWOK_EXPORT flashwok_status flashwok_plan(const flashwok_problem* problem, flashwok_pass pass,
                                              const flashwok_execution* execution,
                                              flashwok_plan_result* result, char* message,
                                              size_t message_size);

// Bytes that flashwok_forward moves between slow memory and the worktops by the formula of its
// algorithm and tiles: on a CPU as an observer is told, on a GPU what the SMs ask L2 for, of which
// DRAM sees what L2 does not keep. Lengths of sequences must be on the CPU. `execution` may be
// null.
FLASHWOK_EXPORT flashwok_status flashwok_forward_bytes(const flashwok_problem* problem,
                                                       const flashwok_forward_output* output,
                                                       const flashwok_execution* execution,
                                                       int64_t* read, int64_t* written,
                                                       char* message, size_t message_size);

// In these, `execution` may be null: all defaults.
FLASHWOK_EXPORT flashwok_status flashwok_forward(const flashwok_problem* problem,
                                                 const flashwok_forward_output* output,
                                                 const flashwok_execution* execution, char* message,
                                                 size_t message_size);
FLASHWOK_EXPORT flashwok_status flashwok_backward(const flashwok_problem* problem,
                                                  const flashwok_backward_input* input,
                                                  const flashwok_gradients* gradients,
                                                  const flashwok_execution* execution,
                                                  char* message, size_t message_size);
// Forward then backward from the same problem. `output` must hold o and lse; dout is as o.
FLASHWOK_EXPORT flashwok_status flashwok_forward_backward(const flashwok_problem* problem,
                                                          const flashwok_forward_output* output,
                                                          const flashwok_tensor* dout,
                                                          const flashwok_gradients* gradients,
                                                          const flashwok_execution* execution,
                                                          char* message, size_t message_size);

// Joins two partial results over disjoint keys: exact, associative, with (O = 0, lse = -inf) as the
// empty element. o: float32, float16 or bfloat16 [batch, seqlen_q, num_heads, head_dim_v], lse:
// float32 [batch, num_heads, seqlen_q]; the output may be one of the inputs. All on the CPU or on one
// CUDA device.
FLASHWOK_EXPORT flashwok_status flashwok_merge_states(
    const flashwok_tensor* o_a, const flashwok_tensor* lse_a, const flashwok_tensor* o_b,
    const flashwok_tensor* lse_b, const flashwok_tensor* o, const flashwok_tensor* lse,
    char* message, size_t message_size);
// The same in the order of the execution's stream, for tensors on a CUDA device; flashwok_merge_states
// takes the default stream there. `execution` may be null.
FLASHWOK_EXPORT flashwok_status flashwok_merge_states_on(
    const flashwok_tensor* o_a, const flashwok_tensor* lse_a, const flashwok_tensor* o_b,
    const flashwok_tensor* lse_b, const flashwok_tensor* o, const flashwok_tensor* lse,
    const flashwok_execution* execution, char* message, size_t message_size);

// float8 values and their scale, one a batch and key head: x = values * descale, up to rounding. On
// the CPU. x: float32, float16 or bfloat16 [batch, seqlen, num_heads, head_dim]; values: float8 of
// that shape; descale: float32 [batch, num_heads_kv].
FLASHWOK_EXPORT flashwok_status flashwok_quantize_float8(const flashwok_tensor* x,
                                                         const flashwok_tensor* values,
                                                         const flashwok_tensor* descale,
                                                         char* message, size_t message_size);

// The kernels, in the order of preference, and the instruction sets that the CPU kernels can use
// here, best first. An index from the count on is refused. The counts are 0 when memory runs out.
FLASHWOK_EXPORT size_t flashwok_num_kernels(void);
FLASHWOK_EXPORT flashwok_status flashwok_get_kernel(size_t index, flashwok_kernel_info* info,
                                                    char* message, size_t message_size);
FLASHWOK_EXPORT size_t flashwok_num_cpu_targets(void);
FLASHWOK_EXPORT flashwok_status flashwok_get_cpu_target(size_t index, char* name, size_t name_size,
                                                        char* message, size_t message_size);

// Static texts: "0.1.0"; "float32", "v2", "bottom_right", "forward", "load", "Q"; "unknown".
FLASHWOK_EXPORT const char* flashwok_version(void);
FLASHWOK_EXPORT const char* flashwok_dtype_name(flashwok_dtype dtype);
FLASHWOK_EXPORT const char* flashwok_algorithm_name(flashwok_algorithm algorithm);
FLASHWOK_EXPORT const char* flashwok_causal_name(flashwok_causal causal);
FLASHWOK_EXPORT const char* flashwok_pass_name(flashwok_pass pass);
FLASHWOK_EXPORT const char* flashwok_event_kind_name(flashwok_event_kind kind);
FLASHWOK_EXPORT const char* flashwok_role_name(flashwok_role role);

#ifdef __cplusplus
}  // extern "C"
#endif
