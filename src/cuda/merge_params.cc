#include "cuda/forward_params.h"
#include "cuda/merge_states.h"

namespace flashwok::cuda {

MergeParams MakeMergeParams(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b,
                            const Tensor& lse_b, const Tensor& o, const Tensor& lse) {
  MergeParams p;
  p.o_a = RowView::Make(o_a);
  p.o_b = RowView::Make(o_b);
  p.o = RowView::Make(o);
  p.lse_a = ScalarView::Make(lse_a);
  p.lse_b = ScalarView::Make(lse_b);
  p.lse = ScalarView::Make(lse);
  p.seqlen_q = o.shape[1];
  p.num_heads = o.shape[2];
  p.head_dim_v = o.shape[3];
  p.rows = o.shape[0] * p.seqlen_q * p.num_heads;
  p.aligned = p.head_dim_v % 8 == 0 && RowsAligned(o_a) && RowsAligned(o_b) && RowsAligned(o);
  return p;
}

}  // namespace flashwok::cuda
