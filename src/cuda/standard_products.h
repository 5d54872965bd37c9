// The two matrix products of standard attention, S = Q K^T and O = P V of every head, in as few
// batched products as the strides allow.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/layout.h"
#include "cuda/attention/forward_standard_params.h"
#include "cuda/cublas.h"

namespace flashwok::cuda {

// One of the axes batch, head of K, head of Q within its group: from product to product, the steps
// of A, B and C in elements.
struct ProductAxis {
  std::int64_t count = 1;
  std::int64_t a = 0, b = 0, c = 0;
};
using ProductAxes = std::array<ProductAxis, 3>;  // the outermost first

// Joins neighbours that make one axis of one step; what is left over has count 1.
inline ProductAxes JoinAxes(const ProductAxes& axes) {
  ProductAxes joined;
  auto* last = joined.data() + joined.size();  // the outermost of those that are placed
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (axis->count == 1) continue;
    const bool placed = last != joined.data() + joined.size();
    if (placed && axis->a == last->a * last->count && axis->b == last->b * last->count &&
        axis->c == last->c * last->count) {
      last->count *= axis->count;
    } else {
      *--last = *axis;
    }
  }
  return joined;
}

// Calls multiply(product) with the longest axis as the batch of a product; the others are loops.
template <class Multiplies>
Status MultiplyAll(const Product& first, const ProductAxes& all, const Multiplies& multiply) {
  ProductAxes axes = JoinAxes(all);
  std::stable_sort(axes.begin(), axes.end(),
                   [](const auto& x, const auto& y) { return x.count < y.count; });
  const auto at = [](const void* pointer, std::int64_t elements, DType dtype) {
    return static_cast<const char*>(pointer) + elements * ItemSize(dtype);
  };
  Status status;
  for (std::int64_t i = 0; status.ok() && i < axes[0].count; ++i) {
    for (std::int64_t j = 0; status.ok() && j < axes[1].count; ++j) {
      Product product = first;
      product.a = at(first.a, i * axes[0].a + j * axes[1].a, first.dtype);
      product.b = at(first.b, i * axes[0].b + j * axes[1].b, first.dtype);
      product.c = const_cast<char*>(at(first.c, i * axes[0].c + j * axes[1].c, first.c_dtype));
      product.count = axes[2].count;
      product.a_batch = axes[2].a;
      product.b_batch = axes[2].b;
      product.c_batch = axes[2].c;
      status = multiply(product);
    }
  }
  return status;
}

class StandardProducts {
 public:
  StandardProducts(const Layout& layout, const ForwardStandardParams& params)
      : layout_(layout), p_(params) {}

  template <class Multiplies>
  Status Scores(const Multiplies& multiply) const {  // S = Q K^T
    Product product{.transpose_b = true, .m = p_.base.total_q, .n = p_.base.total_k};
    product.k = layout_.head_dim;
    product.a = layout_.q.data;
    product.b = layout_.k.data;
    product.c = p_.scores;
    product.a_row = RowStep(layout_.q, product.m, product.k);
    product.b_row = RowStep(layout_.k, product.n, product.k);
    product.c_row = p_.score_stride;
    product.dtype = product.c_dtype = layout_.q.dtype;
    const Steps scores = ScoreSteps();
    return MultiplyAll(product, Axes(QuerySteps(layout_.q), KeySteps(layout_.k), scores), multiply);
  }

  // Without keys a product of depth 0, which writes zeros.
  template <class Multiplies>
  Status Values(const Multiplies& multiply) const {  // O = P V
    Product product{.m = p_.base.total_q, .n = layout_.head_dim_v, .k = p_.base.total_k};
    product.a = p_.scores;
    product.b = layout_.v.data;
    product.c = p_.base.o.data;
    product.a_row = p_.score_stride;
    product.b_row = RowStep(layout_.v, product.k, product.n);
    product.c_row = RowStep(p_.base.o, product.m, product.n);
    product.dtype = layout_.q.dtype;
    product.c_dtype = p_.base.o.dtype;
    const Steps scores = ScoreSteps();
    return MultiplyAll(product, Axes(scores, KeySteps(layout_.v), QuerySteps(p_.base.o)), multiply);
  }

 private:
  using Steps = std::array<std::int64_t, 3>;  // along batch, head of K, head of Q in its group

  static std::int64_t Elements(const RowView& view, std::int64_t bytes) {
    return bytes / ItemSize(view.dtype);
  }
  // The stride of an only row may be anything.
  static std::int64_t RowStep(const RowView& view, std::int64_t rows, std::int64_t cols) {
    return rows > 1 ? Elements(view, view.row_stride) : cols;
  }
  Steps QuerySteps(const RowView& view) const {
    const std::int64_t head = Elements(view, view.head_stride);
    return {Elements(view, view.batch_stride), layout_.group * head, head};
  }
  static Steps KeySteps(const RowView& view) {
    return {Elements(view, view.batch_stride), Elements(view, view.head_stride), 0};
  }
  Steps ScoreSteps() const {
    const std::int64_t head = p_.base.total_q * p_.score_stride;
    return {layout_.num_heads * head, layout_.group * head, head};
  }
  ProductAxes Axes(const Steps& a, const Steps& b, const Steps& c) const {
    const Steps counts{layout_.batch, layout_.num_heads_kv, layout_.group};
    ProductAxes axes;
    for (std::size_t n = 0; n < axes.size(); ++n) axes[n] = {counts[n], a[n], b[n], c[n]};
    return axes;
  }

  const Layout& layout_;
  const ForwardStandardParams& p_;
};

}  // namespace flashwok::cuda
