// From the structs of attention.h to the plain ones of c_api.h.
#pragma once

#include <algorithm>
#include <iterator>

#include "flashwok/attention.h"
#include "flashwok/c_api.h"

namespace flashwok::test {

inline flashwok_tensor Plain(const Tensor& from) {
  flashwok_tensor to{};
  to.data = from.data;
  to.dtype = static_cast<flashwok_dtype>(from.dtype);
  to.rank = from.rank;
  std::copy(from.shape.begin(), from.shape.end(), std::begin(to.shape));
  std::copy(from.strides.begin(), from.strides.end(), std::begin(to.strides));
  to.device_type = static_cast<flashwok_device_type>(from.device.type);
  to.device_index = from.device.index;
  return to;
}

inline flashwok_problem Plain(const Problem& from) {
  flashwok_problem to;
  (void)flashwok_problem_init(&to, sizeof(to));
  to.q = Plain(from.q);
  to.k = Plain(from.k);
  to.v = Plain(from.v);
  to.cu_seqlens_q = Plain(from.cu_seqlens_q);
  to.cu_seqlens_k = Plain(from.cu_seqlens_k);
  to.seqused_k = Plain(from.seqused_k);
  to.page_table = Plain(from.page_table);
  to.bias = Plain(from.bias);
  to.mask = Plain(from.mask);
  to.alibi_slopes = Plain(from.alibi_slopes);
  to.q_descale = Plain(from.q_descale);
  to.k_descale = Plain(from.k_descale);
  to.v_descale = Plain(from.v_descale);
  to.softmax_scale = from.softmax_scale.value_or(0.0);
  to.has_softmax_scale = from.softmax_scale.has_value() ? 1 : 0;
  to.causal = static_cast<flashwok_causal>(from.causal);
  to.window_left = from.window_left;
  to.window_right = from.window_right;
  to.softcap = from.softcap;
  to.algorithm = static_cast<flashwok_algorithm>(from.algorithm);
  to.num_splits = from.num_splits;
  to.deterministic = from.deterministic ? 1 : 0;
  to.dropout_p = from.dropout_p;
  to.dropout_seed = from.dropout_seed;
  to.dropout_offset = from.dropout_offset;
  return to;
}

inline flashwok_forward_output Plain(const ForwardOutput& from) {
  flashwok_forward_output to;
  (void)flashwok_forward_output_init(&to, sizeof(to));
  to.o = Plain(from.o);
  to.lse = Plain(from.lse);
  to.row_max = Plain(from.row_max);
  to.row_sum = Plain(from.row_sum);
  return to;
}

inline flashwok_backward_input Plain(const BackwardInput& from) {
  flashwok_backward_input to;
  (void)flashwok_backward_input_init(&to, sizeof(to));
  to.o = Plain(from.o);
  to.lse = Plain(from.lse);
  to.dout = Plain(from.dout);
  to.dlse = Plain(from.dlse);
  to.row_max = Plain(from.row_max);
  to.row_sum = Plain(from.row_sum);
  return to;
}

inline flashwok_gradients Plain(const Gradients& from) {
  flashwok_gradients to;
  (void)flashwok_gradients_init(&to, sizeof(to));
  to.dq = Plain(from.dq);
  to.dk = Plain(from.dk);
  to.dv = Plain(from.dv);
  to.dbias = Plain(from.dbias);
  return to;
}

inline flashwok_execution Plain(const Execution& from) {
  flashwok_execution to;
  (void)flashwok_execution_init(&to, sizeof(to));
  to.workspace = from.workspace;
  to.workspace_bytes = from.workspace_bytes;
  to.workspace_limit = from.workspace_limit;
  to.num_threads = from.num_threads;
  to.tile_q = from.tile_q;
  to.tile_kv = from.tile_kv;
  to.kernel = from.kernel.empty() ? nullptr : from.kernel.c_str();  // lives as long as `from`
  to.stream = from.stream;
  to.stop = from.stop;
  to.stop_data = from.stop_data;
  return to;
}

}  // namespace flashwok::test
