// What the CUDA forward kernels are given: a validated Problem as plain data, by value. Device
// twins of Layout's verbs; lengths are read on the device, where a wrong one is clamped.
#pragma once

#include "common/layout.h"

namespace flashwok::cuda {

// A column of int32 values, or absent.
struct IntView {
  const std::int32_t* data = nullptr;
  std::int64_t stride = 0;

  FLASHWOK_HOST_DEVICE explicit operator bool() const { return data != nullptr; }
  // Value i, brought within [low, high].
  FLASHWOK_HOST_DEVICE std::int64_t At(std::int64_t i, std::int64_t low, std::int64_t high) const {
    const std::int64_t value = data[i * stride];
    return value < low ? low : value > high ? high : value;
  }
};

struct ForwardParams {
  RowView q, k, v, o;
  ScalarView lse, row_max, row_sum;  // lse may be absent; the other two are V1's
  ScoreView bias, mask;
  IntView cu_seqlens_q, cu_seqlens_k, seqused_k;
  IntView page_table;  // of one sequence; the next one's stands page_batch_stride further
  std::int64_t page_batch_stride = 0;
  std::int64_t page_size = 0, num_pages = 0;
  const float* alibi_slopes = nullptr;
  std::int64_t alibi_batch_stride = 0, alibi_head_stride = 0;

  std::int64_t batch = 0, num_heads = 0, group = 1;  // group: heads of Q a head of K
  std::int64_t head_dim = 0, head_dim_v = 0;
  std::int64_t total_q = 0, total_k = 0;  // rows of the tensors (a batch's, unless varlen)
  Causal causal = Causal::kNone;
  std::int64_t window_left = -1, window_right = -1;

  // Of Q K^T: gives the score in units of log2, or with softcap the argument of its tanh.
  float score_factor = 1.0f;
  float softcap_log2 = 0.0f;  // softcap * log2(e); 0: off
  Dropout dropout;

  // Split-KV: piece s of a row's keys is [s * chunk, (s + 1) * chunk); partial results are float32
  // [num_splits, rows, head_dim_v] and [num_splits, rows], a row being (batch, head, row of Q).
  int num_splits = 1;
  std::int64_t chunk = 0;
  float* partial_o = nullptr;  // in V1: the running O, as attention/head_v1.cuh has it
  float* partial_lse = nullptr;

  bool aligned = true;  // all rows of q, k, v and o start at multiples of 16 bytes

  // Nothing but an interval mask between the product and the softmax.
  FLASHWOK_HOST_DEVICE bool plain() const {
    return !bias && !mask && alibi_slopes == nullptr && softcap_log2 == 0.0f &&
           !dropout.active() && score_factor > 0.0f;
  }

  // Rows of all heads: those of partial results.
  FLASHWOK_HOST_DEVICE std::int64_t rows() const {
    return (cu_seqlens_q ? 1 : batch) * num_heads * total_q;
  }

  FLASHWOK_HOST_DEVICE Sequence At(std::int64_t b) const {
    Sequence sequence;
    sequence.seqlen_q = total_q;
    sequence.seqlen_k = page_size > 0 ? seqused_k.At(b, 0, total_k) : total_k;
    if (cu_seqlens_q) {
      sequence.q_begin = cu_seqlens_q.At(b, 0, total_q);
      sequence.seqlen_q =
          cu_seqlens_q.At(b + 1, sequence.q_begin, total_q) - sequence.q_begin;
      sequence.k_begin = cu_seqlens_k.At(b, 0, total_k);
      sequence.seqlen_k =
          cu_seqlens_k.At(b + 1, sequence.k_begin, total_k) - sequence.k_begin;
    }
    if (seqused_k) sequence.seqlen_k = seqused_k.At(b, 0, sequence.seqlen_k);
    sequence.mask = IntervalMask::Make(causal, window_left, window_right, sequence.seqlen_q,
                                       sequence.seqlen_k);
    return sequence;
  }

  // Key j of a sequence, in k or v.
  FLASHWOK_HOST_DEVICE const char* KeyRow(const RowView& view, std::int64_t b,
                                          const Sequence& sequence, std::int64_t j,
                                          std::int64_t head_kv) const {
    if (page_size == 0) return view.Row(b, sequence.k_begin + j, head_kv);
    const IntView pages{page_table.data + b * page_batch_stride, page_table.stride};
    return view.Row(pages.At(j / page_size, 0, num_pages - 1), j % page_size, head_kv);
  }

  FLASHWOK_HOST_DEVICE float AlibiSlope(std::int64_t b, std::int64_t h) const {
    return alibi_slopes == nullptr
               ? 0.0f
               : alibi_slopes[b * alibi_batch_stride + h * alibi_head_stride];
  }
};

}  // namespace flashwok::cuda
