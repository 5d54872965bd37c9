// Exact attention: O = softmax(mask(softmax_scale * Q K^T)) V, forward and backward, by standard
// attention or by Flash Attention V1, V2 or V3. The same function in all four; only the route of
// the data differs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashwok/export.h"
#include "flashwok/status.h"
#include "flashwok/tensor.h"
#include "flashwok/trace.h"

namespace flashwok {

enum class Algorithm : std::uint8_t {
  kAuto,      // Plan() chooses
  kStandard,  // S and P pass through slow memory
  kV1,        // Dao et al. 2022, arXiv:2205.14135
  kV2,        // Dao 2023, arXiv:2307.08691
  kV3,        // Shah et al. 2024, arXiv:2407.08608
};

enum class Causal : std::uint8_t {
  kNone,
  kBottomRight,  // row i sees keys j <= i + seqlen_k - seqlen_q (the field's default)
  kTopLeft,      // row i sees keys j <= i
};

enum class Pass : std::uint8_t { kForward, kBackward };

FLASHWOK_EXPORT const char* Name(Algorithm algorithm);
FLASHWOK_EXPORT const char* Name(Causal causal);
FLASHWOK_EXPORT const char* Name(Pass pass);

// What is to be computed. Every axis order is [batch, seqlen, num_heads, head_dim], any strides
// with an innermost one of 1; stride 0 broadcasts an input. Tensors of rank 0 are absent.
//
// Scores, in this order: s = softmax_scale * q.k -> softcap -> + bias and ALiBi -> mask (causal,
// window, boolean, key lengths) -> softmax. A row that sees no key gives O = 0, lse = -inf and
// zero gradients.
struct Problem {
  Tensor q;  // [batch, seqlen_q, num_heads, head_dim]; varlen: [total_q, num_heads, head_dim]
  Tensor k;  // [batch, seqlen_k, num_heads_kv, head_dim]; varlen: [total_k, num_heads_kv,
             // head_dim]; paged: [num_pages, page_size, num_heads_kv, head_dim]
  Tensor v;  // as k, with head_dim_v

  // Varlen: sequence b owns rows [cu_seqlens[b], cu_seqlens[b + 1]). Both or neither. Rows past the
  // last entry belong to no sequence: o, lse and dq are left untouched there, dk and dv are zeroed.
  Tensor cu_seqlens_q;  // int32 [batch + 1]
  Tensor cu_seqlens_k;  // int32 [batch + 1]
  // Key lengths: only the first seqused_k[b] keys exist, also for the causal diagonal; dk and dv of
  // the others are zeroed.
  Tensor seqused_k;  // int32 [batch]
  // Paged K and V (forward): key j of sequence b lies in page page_table[b, j / page_size].
  // Needs seqused_k, which gives the number of keys.
  Tensor page_table;  // int32 [batch, max_pages]

  // Added to the scores; each of the first three axes may be 1, which broadcasts it.
  Tensor bias;          // float32 or the inputs' dtype [batch, num_heads, seqlen_q, seqlen_k]
  Tensor mask;          // bool, keep where true       [batch, num_heads, seqlen_q, seqlen_k]
  Tensor alibi_slopes;  // float32 [num_heads] or [batch, num_heads]:
                        // adds -slope * |i + seqlen_k - seqlen_q - j|

  // float8 inputs stand for value * descale. float32 [batch, num_heads_kv]; absent: 1.
  Tensor q_descale, k_descale, v_descale;

  std::optional<double> softmax_scale;  // absent: 1 / sqrt(head_dim)
  Causal causal = Causal::kNone;
  std::int64_t window_left = -1;   // keys left of the diagonal, inclusive; -1: unlimited
  std::int64_t window_right = -1;  // keys right of the diagonal
  double softcap = 0.0;            // softcap * tanh(s / softcap); 0: off

  // Philox4x32-10: the same (seed, offset) gives the same mask forward and backward, everywhere.
  double dropout_p = 0.0;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_offset = 0;

  Algorithm algorithm = Algorithm::kAuto;
  int num_splits = 0;          // of the keys (V2, V3 forward); 0: chosen, without effect on any bit
  bool deterministic = false;  // backward: same bits from run to run (on the CPU always so)
};

struct ForwardOutput {
  Tensor o;    // [batch, seqlen_q, num_heads, head_dim_v] (varlen: [total_q, ...]); the inputs'
               // dtype, float32, or for float8 inputs bfloat16, float16 or float32
  Tensor lse;  // optional float32 [batch, num_heads, seqlen_q] (varlen: [num_heads, total_q]),
               // natural log
  // V1 only, optional, shaped like lse: the running maximum m and sum l that V1 keeps per row.
  Tensor row_max;
  Tensor row_sum;
};

struct BackwardInput {
  Tensor o, lse, dout;      // o and lse as Forward gave them; dout as o
  Tensor dlse;              // optional, shaped like lse: the gradient that arrives at lse
  Tensor row_max, row_sum;  // V1 only, optional; absent: m = lse, l = 1, which is the same P
};

struct Gradients {
  Tensor dq, dk, dv;  // shaped like q, k, v; the inputs' dtype or float32
  Tensor dbias;       // optional, float32, shaped like bias; broadcast axes are summed
};

// How to run it.
struct Execution {
  int num_threads = 0;  // CPU workers; 0: as many cores as the work is worth
  // Scratch of at least PlanResult::workspace_bytes, aligned to 64; null: allocated by the call.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  // A request that needs more scratch than this is refused before anything is allocated. 16 GiB,
  // or 512 MiB where addresses have 32 bits.
  std::size_t workspace_limit = std::size_t{sizeof(void*) > 4 ? 32 : 1} << 29;
  int tile_q = 0, tile_kv = 0;  // rows and keys of a tile; 0: from the kernel's table
  std::string kernel;           // registry name of the one kernel to take in its pass; empty: any
  Observer* observer = nullptr;
  void* stream = nullptr;  // CUDA
  // Asked between tiles by the thread that made the call, on the CPU. Not 0 ends the call with
  // kCancelled; its results then hold anything. It must not throw.
  std::int32_t (*stop)(void* stop_data) = nullptr;
  void* stop_data = nullptr;
};

// Why a kernel would not run a problem.
struct Rejection {
  std::string kernel;
  std::string reason;
};

struct PlanResult {
  Status status;       // ok, or why nothing runs
  std::string kernel;  // registry name, e.g. "cpu_forward_v2"
  Algorithm algorithm = Algorithm::kAuto;
  int tile_q = 0, tile_kv = 0;
  int num_splits = 1;
  int num_threads = 1;
  std::size_t workspace_bytes = 0;
  std::vector<Rejection> rejections;  // every kernel of the pass that was passed over, and why
};

// Pure and total: which kernel Forward or Backward would run, with what scratch, or why none.
// Reads shapes, strides, dtypes and options; of the tensors' contents only cu_seqlens and
// seqused_k, when their data is given.
FLASHWOK_EXPORT PlanResult Plan(const Problem& problem, Pass pass, const Execution& execution = {});

// Bytes that Forward moves between slow memory and the worktops by the formula of its algorithm and
// tiles. On a CPU an observer is told as many; on a GPU the SMs ask L2 for them, and DRAM sees
// those that L2 does not keep. Lengths of sequences must be on the CPU.
FLASHWOK_EXPORT Status ForwardBytes(const Problem& problem, const ForwardOutput& output,
                                    const Execution& execution, std::int64_t* read,
                                    std::int64_t* written);

// All return without writing anything when a precondition fails. An output must not share memory
// with an input or with another output; views that interleave, as packed gradients do, share none.
FLASHWOK_EXPORT Status Forward(const Problem& problem, const ForwardOutput& output,
                               const Execution& execution = {});
FLASHWOK_EXPORT Status Backward(const Problem& problem, const BackwardInput& input,
                                const Gradients& gradients, const Execution& execution = {});
// Forward then Backward from the same problem. `output` must hold o and lse.
FLASHWOK_EXPORT Status ForwardBackward(const Problem& problem, const ForwardOutput& output,
                                       const Tensor& dout, const Gradients& gradients,
                                       const Execution& execution = {});

// Joins two partial results over disjoint keys: exact, associative, with (O = 0, lse = -inf) as
// the empty element. o: [batch, seqlen_q, num_heads, head_dim_v], lse: [batch, num_heads,
// seqlen_q]; an output may be one of the inputs. On the CPU or, with the stream of `execution`, on
// one CUDA device; float32, float16 and bfloat16 O, of any head_dim_v.
FLASHWOK_EXPORT Status MergeStates(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b,
                                   const Tensor& lse_b, const Tensor& o, const Tensor& lse,
                                   const Execution& execution = {});

// float8 and its scale, one a batch and key head: x = values * descale, up to rounding. The largest
// finite magnitude of a scale's heads becomes the largest of the dtype. On the CPU. x: float32,
// float16 or bfloat16 [batch, seqlen, num_heads, head_dim]; values: float8 of that shape; descale:
// float32 [batch, num_heads_kv], as Problem takes it.
FLASHWOK_EXPORT Status QuantizeFloat8(const Tensor& x, const Tensor& values, const Tensor& descale);

// One kernel of the registry.
struct KernelInfo {
  std::string name;
  Pass pass;
  Algorithm algorithm;
  Device device;
  std::string dtypes;       // "float32 float16 bfloat16"
  std::string requirement;  // instruction set beyond the baseline, or empty
  bool available;           // on this machine
};
FLASHWOK_EXPORT std::vector<KernelInfo> Kernels();

// The instruction sets that the CPU kernels can use here, best first.
FLASHWOK_EXPORT std::vector<std::string> CpuTargets();

FLASHWOK_EXPORT const char* Version();

}  // namespace flashwok
