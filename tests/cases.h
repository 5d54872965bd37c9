// The one list of named cases that tests and benchmarks share: each corner of the contract, small
// enough that the float64 oracle runs all of them in seconds.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "flashwok/attention.h"

namespace flashwok::test {

// Of q, k, v and, where it can be, of the outputs.
enum class Layout : std::uint8_t {
  kBshd,       // contiguous
  kBhsd,       // heads outside the sequence in memory
  kPackedQkv,  // q, k and v side by side in one buffer
  kSliced,     // of a larger buffer, off alignment
  kBroadcast,  // k and v without a batch stride, q without a head stride
};

// Which axes of a bias or mask are there; the others have extent 1.
enum class Axes : std::uint8_t {
  kNone,    // absent
  kFull,    // [batch, num_heads, seqlen_q, seqlen_k]
  kHeads,   // [1, num_heads, seqlen_q, seqlen_k]
  kScores,  // [1, 1, seqlen_q, seqlen_k]
  kKeys,    // [batch, 1, 1, seqlen_k]
};

enum class Alibi : std::uint8_t { kNone, kHeads, kBatchHeads };

struct Case {
  std::string name;
  DType dtype = DType::kFloat32;
  std::int64_t batch = 2;  // varlen: the number of lengths
  std::int64_t seqlen_q = 65;
  std::int64_t seqlen_k = 65;
  std::int64_t num_heads = 2;
  std::int64_t num_heads_kv = 0;  // 0: num_heads
  std::int64_t head_dim = 32;
  std::int64_t head_dim_v = 0;  // 0: head_dim
  Causal causal = Causal::kNone;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  std::optional<double> softmax_scale = {};
  double softcap = 0.0;
  Axes bias = Axes::kNone;
  bool bias_in_dtype = false;  // else float32
  bool bias_hides = false;     // every third key of the bias is -inf
  Axes mask = Axes::kNone;     // 30 % hidden; of a full one, every fifth row wholly
  Alibi alibi = Alibi::kNone;
  double dropout_p = 0.0;
  std::vector<int> lengths_q = {};  // varlen, with lengths_k
  std::vector<int> lengths_k = {};
  std::vector<int> seqused_k = {};  // the keys past them are NaN
  int page_size = 0;                // not 0: paged, with seqused_k
  Layout layout = Layout::kBshd;
  bool float32_output = false;
  bool descale = false;    // float8: with random descales
  double magnitude = 1.0;  // of q, k and v: N(0, magnitude^2)
  bool dlse = false;
  bool poison = false;   // the keys that no row sees are NaN
  bool nan_row = false;  // row 0 of q is NaN in the first head
  bool backward = true;
};

// How a failing test shows its case.
inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

inline std::vector<Case> ShapeCases() {
  std::vector<Case> cases = {
      {.name = "basic"},
      {.name = "batch_0", .batch = 0},
      {.name = "seqlen_q_0", .seqlen_q = 0},
      {.name = "seqlen_k_0", .seqlen_k = 0},
      {.name = "one_query", .seqlen_q = 1, .seqlen_k = 300, .num_heads = 4, .num_heads_kv = 1},
      {.name = "one_key", .seqlen_k = 1},
      {.name = "q_longer", .seqlen_q = 200, .seqlen_k = 63},
      {.name = "k_longer", .seqlen_q = 7, .seqlen_k = 520},
      {.name = "head_dim_192_v_128", .head_dim = 192, .head_dim_v = 128},
      {.name = "head_dim_64_v_16", .head_dim = 64, .head_dim_v = 16},
      {.name = "head_dim_5_v_33", .head_dim = 5, .head_dim_v = 33},
      {.name = "gqa_2", .num_heads = 4, .num_heads_kv = 2},
      {.name = "gqa_3", .seqlen_q = 40, .seqlen_k = 70, .num_heads = 6, .num_heads_kv = 2},
      {.name = "mqa_8", .num_heads = 8, .num_heads_kv = 1, .head_dim = 16},
  };
  for (std::int64_t head_dim : {1, 3, 8, 20, 64, 72, 96, 128, 192, 256}) {
    cases.push_back({.name = "head_dim_" + std::to_string(head_dim), .head_dim = head_dim});
  }
  for (std::int64_t seqlen : {1, 2, 7, 63, 64, 127, 129, 200, 300, 520}) {
    cases.push_back({.name = "seqlen_" + std::to_string(seqlen),
                     .batch = 1,
                     .seqlen_q = seqlen,
                     .seqlen_k = seqlen,
                     .head_dim = 16,
                     .causal = seqlen % 2 == 0 ? Causal::kBottomRight : Causal::kNone});
  }
  return cases;
}

inline std::vector<Case> IntervalCases() {
  constexpr Causal kBottomRight = Causal::kBottomRight;
  constexpr Causal kTopLeft = Causal::kTopLeft;
  return {
      {.name = "causal", .causal = kBottomRight},
      {.name = "causal_q_longer", .seqlen_q = 150, .seqlen_k = 70, .causal = kBottomRight},
      {.name = "causal_k_longer", .seqlen_q = 70, .seqlen_k = 150, .causal = kBottomRight},
      {.name = "top_left_q_longer", .seqlen_q = 150, .seqlen_k = 70, .causal = kTopLeft},
      {.name = "top_left_k_longer",
       .seqlen_q = 70,
       .seqlen_k = 150,
       .causal = kTopLeft,
       .poison = true},
      {.name = "window_0_0", .window_left = 0, .window_right = 0},
      {.name = "window_unlimited_0", .window_right = 0},
      {.name = "window_7_unlimited", .window_left = 7},
      {.name = "window_5_3", .window_left = 5, .window_right = 3},
      {.name = "window_5_3_long",
       .batch = 1,
       .seqlen_q = 300,
       .seqlen_k = 300,
       .window_left = 5,
       .window_right = 3},
      {.name = "window_1000000_0", .window_left = 1000000, .window_right = 0},
      {.name = "window_largest",
       .window_left = std::numeric_limits<std::int64_t>::max(),
       .window_right = std::numeric_limits<std::int64_t>::max()},
      {.name = "window_q_longer",
       .seqlen_q = 150,
       .seqlen_k = 70,
       .window_left = 9,
       .window_right = 4},
      {.name = "window_k_longer",
       .seqlen_q = 30,
       .seqlen_k = 200,
       .window_left = 20,
       .window_right = 2,
       .poison = true},
      {.name = "causal_window",
       .seqlen_q = 129,
       .seqlen_k = 200,
       .causal = kBottomRight,
       .window_left = 17,
       .window_right = 5,
       .poison = true},
      {.name = "top_left_window",
       .seqlen_q = 200,
       .seqlen_k = 129,
       .causal = kTopLeft,
       .window_left = 33},
  };
}

inline std::vector<Case> MaskCases() {
  constexpr Causal kBottomRight = Causal::kBottomRight;
  return {
      {.name = "mask_full", .mask = Axes::kFull},
      {.name = "mask_heads", .num_heads = 4, .num_heads_kv = 2, .mask = Axes::kHeads},
      {.name = "mask_scores_causal", .causal = kBottomRight, .mask = Axes::kScores},
      {.name = "mask_keys", .seqlen_k = 100, .mask = Axes::kKeys, .poison = true},
      {.name = "seqused", .seqlen_k = 130, .seqused_k = {130, 64}},
      {.name = "seqused_causal",
       .batch = 4,
       .seqlen_q = 40,
       .seqlen_k = 130,
       .causal = kBottomRight,
       .seqused_k = {0, 1, 77, 130}},
      {.name = "seqused_window",
       .seqlen_q = 80,
       .seqlen_k = 90,
       .window_left = 10,
       .window_right = 10,
       .seqused_k = {90, 31}},
  };
}

inline std::vector<Case> LengthCases() {
  constexpr Causal kBottomRight = Causal::kBottomRight;
  constexpr Causal kTopLeft = Causal::kTopLeft;
  return {
      {.name = "varlen", .lengths_q = {65, 1, 130}, .lengths_k = {40, 70, 130}},
      {.name = "varlen_causal_empty",
       .causal = kBottomRight,
       .lengths_q = {0, 33, 20, 0, 7},
       .lengths_k = {5, 33, 0, 0, 90}},
      {.name = "varlen_all_empty", .lengths_q = {0, 0}, .lengths_k = {0, 0}},
      {.name = "varlen_gqa_window",
       .num_heads = 6,
       .num_heads_kv = 2,
       .window_left = 12,
       .window_right = 0,
       .lengths_q = {50, 9},
       .lengths_k = {70, 80},
       .layout = Layout::kSliced},
      {.name = "varlen_seqused",
       .causal = kTopLeft,
       .lengths_q = {30, 40},
       .lengths_k = {50, 60},
       .seqused_k = {0, 21}},
      {.name = "paged",
       .seqlen_q = 5,
       .num_heads = 4,
       .num_heads_kv = 2,
       .causal = kBottomRight,
       .seqused_k = {100, 17},
       .page_size = 16,
       .backward = false},
      {.name = "paged_sliced",
       .batch = 3,
       .seqlen_q = 3,
       .seqused_k = {0, 9, 10},
       .page_size = 3,
       .layout = Layout::kSliced,
       .backward = false},
  };
}

inline std::vector<Case> ScoreCases() {
  constexpr Causal kBottomRight = Causal::kBottomRight;
  return {
      {.name = "bias_full", .seqlen_q = 40, .bias = Axes::kFull},
      {.name = "bias_heads", .num_heads = 4, .num_heads_kv = 2, .bias = Axes::kHeads},
      {.name = "bias_scores_causal", .causal = kBottomRight, .bias = Axes::kScores},
      {.name = "bias_keys", .seqlen_k = 100, .bias = Axes::kKeys},
      {.name = "bias_keys_hidden", .bias = Axes::kKeys, .bias_hides = true, .poison = true},
      {.name = "bias_sliced", .bias = Axes::kFull, .layout = Layout::kSliced},
      {.name = "bias_varlen", .bias = Axes::kFull, .lengths_q = {30, 7}, .lengths_k = {12, 44}},
      {.name = "alibi", .num_heads = 4, .alibi = Alibi::kHeads},
      {.name = "alibi_batch_causal",
       .seqlen_q = 50,
       .seqlen_k = 80,
       .causal = kBottomRight,
       .alibi = Alibi::kBatchHeads},
      {.name = "alibi_top_left",
       .seqlen_q = 80,
       .seqlen_k = 50,
       .causal = Causal::kTopLeft,
       .alibi = Alibi::kHeads},
      {.name = "softcap_half", .softcap = 0.5},
      {.name = "softcap_30_causal", .causal = kBottomRight, .softcap = 30.0, .magnitude = 5.0},
      {.name = "scale_0", .softmax_scale = 0.0},
      {.name = "scale_negative", .softmax_scale = -0.3},
      {.name = "scale_2", .softmax_scale = 2.0},
  };
}

inline std::vector<Case> MixedCases() {
  constexpr Causal kBottomRight = Causal::kBottomRight;
  return {
      {.name = "dropout_10", .seqlen_k = 67, .dropout_p = 0.1},
      {.name = "dropout_50_gqa",
       .num_heads = 4,
       .num_heads_kv = 2,
       .causal = kBottomRight,
       .dropout_p = 0.5},
      {.name = "dropout_90_varlen", .dropout_p = 0.9, .lengths_q = {33, 20}, .lengths_k = {21, 70}},
      {.name = "dlse", .dlse = true},
      {.name = "dlse_causal_varlen",
       .causal = kBottomRight,
       .lengths_q = {40, 10},
       .lengths_k = {20, 30},
       .dlse = true},
      {.name = "large_inputs", .magnitude = 30.0},
      {.name = "small_inputs", .magnitude = 1e-3},
      {.name = "nan_row", .nan_row = true, .backward = false},
      {.name = "everything",
       .num_heads = 4,
       .num_heads_kv = 2,
       .head_dim = 24,
       .head_dim_v = 40,
       .causal = kBottomRight,
       .window_left = 50,
       .softmax_scale = 0.4,
       .softcap = 3.0,
       .bias = Axes::kFull,
       .mask = Axes::kHeads,
       .alibi = Alibi::kBatchHeads,
       .dropout_p = 0.25,
       .lengths_q = {70, 0, 33},
       .lengths_k = {90, 12, 20},
       .seqused_k = {81, 12, 20},
       .layout = Layout::kSliced,
       .dlse = true},
  };
}

inline std::vector<Case> LayoutCases() {
  return {
      {.name = "bhsd", .seqlen_q = 33, .seqlen_k = 47, .layout = Layout::kBhsd},
      {.name = "packed", .layout = Layout::kPackedQkv},
      {.name = "packed_gqa", .num_heads = 4, .num_heads_kv = 2, .layout = Layout::kPackedQkv},
      {.name = "packed_varlen",
       .lengths_q = {20, 50},
       .lengths_k = {20, 50},
       .layout = Layout::kPackedQkv},
      {.name = "sliced", .seqlen_q = 33, .seqlen_k = 47, .layout = Layout::kSliced},
      {.name = "broadcast", .batch = 3, .seqlen_q = 30, .layout = Layout::kBroadcast},
  };
}

// Each dtype through the ways that kernels treat differently.
inline std::vector<Case> DTypeCases() {
  std::vector<Case> cases;
  const auto add = [&](const char* prefix, DType dtype, Case c) {
    c.name = prefix + ("_" + c.name);
    c.dtype = dtype;
    cases.push_back(c);
  };
  const Case basic = {.name = "basic", .head_dim = 64};
  const Case odd = {.name = "odd", .seqlen_q = 31, .head_dim = 5, .head_dim_v = 33};
  const Case causal_gqa = {.name = "causal_gqa",
                           .seqlen_q = 70,
                           .seqlen_k = 129,
                           .num_heads = 4,
                           .num_heads_kv = 2,
                           .head_dim = 128,
                           .causal = Causal::kBottomRight};
  for (const auto& [prefix, dtype] :
       {std::pair{"float16", DType::kFloat16}, std::pair{"bfloat16", DType::kBFloat16}}) {
    for (const Case& c : {basic, odd, causal_gqa}) add(prefix, dtype, c);
    add(prefix, dtype,
        {.name = "bias_varlen",
         .bias = Axes::kHeads,
         .bias_in_dtype = true,
         .lengths_q = {40, 0, 9},
         .lengths_k = {66, 3, 0}});
    add(prefix, dtype,
        {.name = "dropout_softcap", .softcap = 5.0, .dropout_p = 0.2, .float32_output = true});
    add(prefix, dtype, {.name = "sliced", .head_dim = 20, .layout = Layout::kSliced});
    add(prefix, dtype, {.name = "large_inputs", .magnitude = 20.0});
    add(prefix, dtype, {.name = "seqused_dlse", .seqused_k = {3, 64}, .dlse = true});
  }
  for (const auto& [prefix, dtype] :
       {std::pair{"e4m3", DType::kFloat8E4M3}, std::pair{"e5m2", DType::kFloat8E5M2}}) {
    for (Case c : {basic, odd, causal_gqa}) {
      c.backward = false;
      c.descale = c.name == "causal_gqa";
      c.float32_output = c.name == "odd";
      add(prefix, dtype, c);
    }
  }
  return cases;
}

inline const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    for (const auto& part : {ShapeCases(), IntervalCases(), MaskCases(), LengthCases(),
                             ScoreCases(), MixedCases(), LayoutCases(), DTypeCases()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    // Kernels of their own multiply bfloat16: they see every case too.
    const std::vector<Case> wide = all;
    for (Case c : wide) {
      // Scores of more than some hundreds have no digit left in bfloat16: that dtype has its own
      // large inputs.
      if (c.dtype != DType::kFloat32 || c.magnitude > 20.0) continue;
      c.dtype = DType::kBFloat16;
      c.name += "_bfloat16";
      all.push_back(c);
    }
    return all;
  }();
  return cases;
}

// Every case that the GPU's dtypes can hold, in both of them.
inline std::vector<Case> HalfCases() {
  std::vector<Case> cases;
  for (Case c : Cases()) {
    if (c.dtype != DType::kBFloat16 && c.dtype != DType::kFloat16) continue;
    c.backward = false;
    cases.push_back(c);
    c.dtype = c.dtype == DType::kFloat16 ? DType::kBFloat16 : DType::kFloat16;
    c.name += c.dtype == DType::kFloat16 ? "_as_float16" : "_as_bfloat16";
    cases.push_back(c);
  }
  return cases;
}

}  // namespace flashwok::test
