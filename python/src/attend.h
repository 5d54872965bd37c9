// Attention straight from the caller's arrays, in one call.
#pragma once

#include <nanobind/nanobind.h>

namespace flashwok::python {

// Fills o and lse. q, k, v, o, lse and the entries of `tensors` (None, or a tuple with None for
// what is absent) are arrays of any library. `scalars`: softmax_scale, causal, window_left,
// window_right, softcap, dropout_p, dropout_offset, num_splits, deterministic, algorithm.
// `most_threads` bounds the CPU's threads, where num_threads is 0; 0: no bound. `stream`: of CUDA,
// in DLPack's numbers; None: that of q's library. `heads_first`: q, k, v and o are [batch,
// num_heads, seqlen, head_dim].
void Attend(nanobind::handle q, nanobind::handle k, nanobind::handle v, nanobind::handle tensors,
            nanobind::handle o, nanobind::handle lse, nanobind::tuple scalars,
            nanobind::handle dropout_seed, nanobind::handle num_threads, int most_threads,
            nanobind::object stream, bool heads_first);

}  // namespace flashwok::python
