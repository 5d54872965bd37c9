#include "api/validate.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <utility>

#include "api/check.h"
#include "common/layout.h"

namespace flashwok {
namespace {

constexpr std::int64_t kUnknown = -1;

std::int64_t At(const Tensor& tensor, std::int64_t i) {
  return static_cast<const std::int32_t*>(tensor.data)[i * tensor.strides[0]];
}

class ProblemCheck {
 public:
  ProblemCheck(const Problem& problem, Pass pass)
      : p_(problem),
        pass_(pass),
        varlen_(problem.cu_seqlens_q.present()),
        paged_(problem.page_table.present()) {}

  Status Run() {
    (void)(Options() && Combinations() && Query() && KeysAndValues() && Lengths() && Extras() &&
           Descales());
    return check_.status();
  }

 private:
  const char* BatchSource() const { return varlen_ ? "cu_seqlens_q" : "q"; }
  bool Options();
  bool Scale();
  bool Combinations();
  bool Query();
  bool KeysAndValues();
  bool Lengths();
  bool CuSeqlens(const char* name, const Tensor& tensor, const char* total_name, std::int64_t total,
                 std::int64_t* longest);
  bool SeqUsed();
  bool PageTable();
  bool Extras();
  bool Scores(const char* name, const Tensor& tensor);
  bool ScoresLength(const char* name, const Tensor& tensor, int axis, const char* axis_name,
                    std::int64_t longest);
  bool Alibi();
  bool Descales();

  const Problem& p_;
  const Pass pass_;
  const bool varlen_;
  const bool paged_;
  std::int64_t batch_ = 0;
  std::int64_t num_heads_ = 0;
  std::int64_t num_heads_kv_ = 0;
  std::int64_t longest_q_ = kUnknown;  // of the batch; known once the lengths' data are given
  std::int64_t longest_k_ = kUnknown;
  Check check_;
};

bool ProblemCheck::Options() {
  if (pass_ > Pass::kBackward) {
    return check_.Invalid("pass: is ", static_cast<int>(pass_), ", must be 0 or 1");
  }
  if (p_.algorithm > Algorithm::kV3) {
    return check_.Invalid("algorithm: is ", static_cast<int>(p_.algorithm), ", must be from 0 to ",
                          static_cast<int>(Algorithm::kV3));
  }
  if (p_.causal > Causal::kTopLeft) {
    return check_.Invalid("causal: is ", static_cast<int>(p_.causal), ", must be from 0 to ",
                          static_cast<int>(Causal::kTopLeft));
  }
  for (const auto& [name, value] :
       {std::pair{"window_left", p_.window_left}, std::pair{"window_right", p_.window_right}}) {
    if (value < -1) {
      return check_.Invalid(name, ": is ", value, ", must be from 0, or -1 for unlimited");
    }
  }
  if (!(p_.dropout_p >= 0.0 && p_.dropout_p < 1.0)) {
    return check_.Invalid("dropout_p: is ", p_.dropout_p, ", must be from 0 to below 1");
  }
  if (!check_.Range("num_splits", "is ", p_.num_splits, 0, kMaxSplits)) return false;
  const bool splits = p_.algorithm != Algorithm::kStandard && p_.algorithm != Algorithm::kV1;
  if (p_.num_splits > 1 && !splits) {
    return check_.Invalid("num_splits: is ", p_.num_splits, ", must be 0 or 1 with algorithm ",
                          Name(p_.algorithm));
  }
  return Scale();
}

// Both are used as float32, the scale in units of log2, so that is where they must be finite and
// keep their meaning.
constexpr float kMaxScale = 0x1p126f;

bool ProblemCheck::Scale() {
  if (p_.softmax_scale && !(std::abs(*p_.softmax_scale) <= kMaxScale)) {
    return check_.Invalid("softmax_scale: is ", *p_.softmax_scale, ", must be finite, up to ",
                          kMaxScale);
  }
  const double softcap = p_.softcap;
  if (softcap == 0.0 || (softcap >= FLT_MIN && softcap <= kMaxScale)) return true;
  return check_.Invalid("softcap: is ", softcap, ", must be 0 (off) or from ", FLT_MIN, " to ",
                        kMaxScale);
}

bool ProblemCheck::Combinations() {
  if (varlen_ != p_.cu_seqlens_k.present()) {
    return check_.Invalid(varlen_ ? "cu_seqlens_k" : "cu_seqlens_q", ": is absent, must be given ",
                          "together with ", varlen_ ? "cu_seqlens_q" : "cu_seqlens_k");
  }
  if (!paged_) return true;
  if (varlen_) {
    return check_.Invalid("page_table: is given with cu_seqlens_q and cu_seqlens_k, must be alone");
  }
  if (!p_.seqused_k.present()) {
    return check_.Invalid("seqused_k: is absent, must be given together with page_table");
  }
  if (pass_ == Pass::kBackward) {
    return check_.Unsupported("page_table: is given, must be absent in the backward pass");
  }
  return true;
}

bool ProblemCheck::Query() {
  const Tensor& q = p_.q;
  const bool shaped =
      check_.Present("q", q) && check_.Input("q", q) &&
      (varlen_ ? check_.Rank("q", q, 3, "[total_q, num_heads, head_dim]")
               : check_.Rank("q", q, 4, "[batch, seqlen_q, num_heads, head_dim]")) &&
      check_.Type("q", q,
                  {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                   DType::kFloat8E5M2});
  if (!shaped) return false;
  if (pass_ == Pass::kBackward && IsFloat8(q.dtype)) {
    return check_.Unsupported("q: dtype is ", Name(q.dtype),
                              ", must be float32, float16 or bfloat16 in the backward pass");
  }
  num_heads_ = q.shape[q.rank - 2];
  batch_ = varlen_ ? 0 : q.shape[0];  // varlen: known from cu_seqlens
  if (!varlen_) longest_q_ = q.shape[1];
  return check_.Range("q", varlen_ ? "total_q is " : "seqlen_q is ", q.shape[q.rank - 3], 0,
                      kMaxLength) &&
         check_.Range("q", "num_heads is ", num_heads_, 1, kMaxLength) &&
         check_.Range("q", "head_dim is ", q.shape[q.rank - 1], 1, kMaxHeadDim);
}

bool ProblemCheck::KeysAndValues() {
  const Tensor& k = p_.k;
  const Tensor& v = p_.v;
  const char* axes = varlen_  ? "[total_k, num_heads_kv, head_dim]"
                     : paged_ ? "[num_pages, page_size, num_heads_kv, head_dim]"
                              : "[batch, seqlen_k, num_heads_kv, head_dim]";
  const int rank = varlen_ ? 3 : 4;
  const bool shaped = check_.Present("k", k) && check_.Input("k", k) &&
                      check_.Rank("k", k, rank, axes) && check_.Type("k", k, {p_.q.dtype}) &&
                      check_.Present("v", v) && check_.Input("v", v) &&
                      check_.Rank("v", v, rank, axes) && check_.Type("v", v, {p_.q.dtype});
  if (!shaped) return false;
  num_heads_kv_ = k.shape[rank - 2];
  const bool counted = check_.Range("k", "num_heads_kv is ", num_heads_kv_, 1, kMaxLength) &&
                       check_.Axis("k", k, rank - 1, "head_dim", p_.q.shape[rank - 1], "q") &&
                       check_.Range("v", "head_dim_v is ", v.shape[rank - 1], 1, kMaxHeadDim) &&
                       check_.Axis("v", v, rank - 2, "num_heads_kv", num_heads_kv_, "k") &&
                       check_.Axis("v", v, rank - 3,
                                   varlen_  ? "total_k"
                                   : paged_ ? "page_size"
                                            : "seqlen_k",
                                   k.shape[rank - 3], "k");
  if (!counted) return false;
  if (num_heads_ % num_heads_kv_ != 0) {
    return check_.Invalid("k: num_heads_kv is ", num_heads_kv_, ", must divide num_heads of q, ",
                          num_heads_);
  }
  if (varlen_) return check_.Range("k", "total_k is ", k.shape[0], 0, kMaxLength);
  if (paged_) {
    return check_.Range("k", "num_pages is ", k.shape[0], 0, kMaxLength) &&
           check_.Range("k", "page_size is ", k.shape[1], 1, kMaxLength) &&
           check_.Axis("v", v, 0, "num_pages", k.shape[0], "k");
  }
  longest_k_ = k.shape[1];
  return check_.Range("k", "seqlen_k is ", longest_k_, 0, kMaxLength) &&
         check_.Axis("k", k, 0, "batch", batch_, BatchSource()) &&
         check_.Axis("v", v, 0, "batch", batch_, BatchSource());
}

bool ProblemCheck::Lengths() {
  if (varlen_) {
    if (!CuSeqlens("cu_seqlens_q", p_.cu_seqlens_q, "total_q", p_.q.shape[0], &longest_q_) ||
        !CuSeqlens("cu_seqlens_k", p_.cu_seqlens_k, "total_k", p_.k.shape[0], &longest_k_) ||
        !check_.Axis("cu_seqlens_k", p_.cu_seqlens_k, 0, "batch + 1", p_.cu_seqlens_q.shape[0],
                     "cu_seqlens_q")) {
      return false;
    }
    batch_ = p_.cu_seqlens_q.shape[0] - 1;
  }
  if (!check_.Range("q", "batch is ", batch_, 0, kMaxLength)) return false;
  if (batch_ > kMaxLength / num_heads_) {
    return check_.Invalid("q: batch is ", batch_, " and num_heads ", num_heads_,
                          ", must multiply to at most ", kMaxLength);
  }
  return (!paged_ || PageTable()) && (!p_.seqused_k.present() || SeqUsed());
}

bool ProblemCheck::CuSeqlens(const char* name, const Tensor& tensor, const char* total_name,
                             std::int64_t total, std::int64_t* longest) {
  if (!check_.Input(name, tensor) || !check_.Rank(name, tensor, 1, "[batch + 1]") ||
      !check_.Type(name, tensor, {DType::kInt32}) ||
      !check_.Range(name, "length is ", tensor.shape[0], 1, kMaxLength)) {
    return false;
  }
  if (!Readable(tensor)) return true;
  if (At(tensor, 0) != 0) {
    return check_.Invalid(name, ": first value is ", At(tensor, 0), ", must be 0");
  }
  *longest = 0;
  for (std::int64_t b = 0; b + 1 < tensor.shape[0]; ++b) {
    const std::int64_t length = At(tensor, b + 1) - At(tensor, b);
    if (length < 0) {
      return check_.Invalid(name, ": value ", b + 1, " is ", At(tensor, b + 1),
                            ", must be from the one before, ", At(tensor, b));
    }
    *longest = std::max(*longest, length);
  }
  const std::int64_t last = At(tensor, tensor.shape[0] - 1);
  return last <= total || check_.Invalid(name, ": last value is ", last, ", must be up to ",
                                         total_name, ", ", total);
}

bool ProblemCheck::PageTable() {
  const Tensor& table = p_.page_table;
  const std::int64_t page_size = p_.k.shape[1];
  return check_.Input("page_table", table) &&
         check_.Rank("page_table", table, 2, "[batch, max_pages]") &&
         check_.Type("page_table", table, {DType::kInt32}) &&
         check_.Axis("page_table", table, 0, "batch", batch_, BatchSource()) &&
         check_.Range("page_table", "max_pages is ", table.shape[1], 0, kMaxLength / page_size);
}

bool ProblemCheck::SeqUsed() {
  const Tensor& used = p_.seqused_k;
  if (!check_.Input("seqused_k", used) || !check_.Rank("seqused_k", used, 1, "[batch]") ||
      !check_.Type("seqused_k", used, {DType::kInt32}) ||
      !check_.Axis("seqused_k", used, 0, "batch", batch_, BatchSource())) {
    return false;
  }
  const bool limits_known = !varlen_ || Readable(p_.cu_seqlens_k);
  if (!Readable(used) || !limits_known) return true;
  if (paged_) longest_k_ = 0;
  for (std::int64_t b = 0; b < batch_; ++b) {
    const std::int64_t limit = varlen_  ? At(p_.cu_seqlens_k, b + 1) - At(p_.cu_seqlens_k, b)
                               : paged_ ? p_.page_table.shape[1] * p_.k.shape[1]
                                        : p_.k.shape[1];
    const std::int64_t value = At(used, b);
    if (value < 0 || value > limit) {
      return check_.Invalid("seqused_k: value ", b, " is ", value, ", must be from 0 to ", limit,
                            paged_ ? ", max_pages * page_size" : ", the sequence's length");
    }
    if (paged_) longest_k_ = std::max(longest_k_, value);
  }
  return true;
}

bool ProblemCheck::Extras() {
  if (p_.bias.present() &&
      !(Scores("bias", p_.bias) && check_.Type("bias", p_.bias, {DType::kFloat32, p_.q.dtype}))) {
    return false;
  }
  if (p_.mask.present() &&
      !(Scores("mask", p_.mask) && check_.Type("mask", p_.mask, {DType::kBool}))) {
    return false;
  }
  return !p_.alibi_slopes.present() || Alibi();
}

bool ProblemCheck::Scores(const char* name, const Tensor& tensor) {
  return check_.Input(name, tensor) &&
         check_.Rank(name, tensor, 4, "[batch, num_heads, seqlen_q, seqlen_k]") &&
         check_.BroadcastAxis(name, tensor, 0, "batch", batch_, BatchSource()) &&
         check_.BroadcastAxis(name, tensor, 1, "num_heads", num_heads_, "q") &&
         (tensor.shape[2] == 1 || ScoresLength(name, tensor, 2, "seqlen_q", longest_q_)) &&
         ScoresLength(name, tensor, 3, "seqlen_k", longest_k_);
}

// Where the lengths differ from sequence to sequence, the axis holds at least the longest.
bool ProblemCheck::ScoresLength(const char* name, const Tensor& tensor, int axis,
                                const char* axis_name, std::int64_t longest) {
  const std::int64_t extent = tensor.shape[axis];
  if (!check_.Range(name, Concat(axis_name, " is ").c_str(), extent, 0, kMaxLength)) return false;
  const bool differ = varlen_ || (paged_ && axis == 3);
  if (!differ) return check_.Axis(name, tensor, axis, axis_name, longest, axis == 2 ? "q" : "k");
  return extent >= longest ||
         check_.Invalid(name, ": ", axis_name, " (axis ", axis, ") is ", extent, ", must be from ",
                        longest, ", the longest sequence");
}

bool ProblemCheck::Alibi() {
  const Tensor& slopes = p_.alibi_slopes;
  if (!check_.Input("alibi_slopes", slopes) ||
      !check_.Type("alibi_slopes", slopes, {DType::kFloat32})) {
    return false;
  }
  if (slopes.rank > 2) {
    return check_.Rank("alibi_slopes", slopes, 2, "[num_heads] or [batch, num_heads]");
  }
  return check_.Axis("alibi_slopes", slopes, slopes.rank - 1, "num_heads", num_heads_, "q") &&
         (slopes.rank == 1 ||
          check_.Axis("alibi_slopes", slopes, 0, "batch", batch_, BatchSource()));
}

bool ProblemCheck::Descales() {
  for (const auto& [name, tensor] :
       {std::pair{"q_descale", &p_.q_descale}, std::pair{"k_descale", &p_.k_descale},
        std::pair{"v_descale", &p_.v_descale}}) {
    if (!tensor->present()) continue;
    if (!IsFloat8(p_.q.dtype)) {
      return check_.Invalid(name, ": is given with inputs of ", Name(p_.q.dtype),
                            ", must be absent unless they are float8");
    }
    const bool holds = check_.Input(name, *tensor) &&
                       check_.Rank(name, *tensor, 2, "[batch, num_heads_kv]") &&
                       check_.Type(name, *tensor, {DType::kFloat32}) &&
                       check_.Axis(name, *tensor, 0, "batch", batch_, BatchSource()) &&
                       check_.Axis(name, *tensor, 1, "num_heads_kv", num_heads_kv_, "k");
    if (!holds) return false;
  }
  return true;
}

}  // namespace

Status Validate(const Problem& problem, Pass pass) { return ProblemCheck(problem, pass).Run(); }

}  // namespace flashwok
