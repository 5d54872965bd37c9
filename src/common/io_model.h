// What each algorithm moves between slow memory and the worktop, and computes, as a function of the
// problem and the tiles alone: the formulas that the counted traffic of a run is held against. The
// forward pass is here, the backward pass in io_model_backward.h.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "common/layout.h"
#include "common/tile_range.h"

namespace flashwok::io_model {

struct Traffic {
  static constexpr int kRoles = static_cast<int>(Role::kDLse) + 1;
  std::array<std::int64_t, kRoles> load{};  // bytes by Role
  std::array<std::int64_t, kRoles> store{};
  std::int64_t flops = 0;  // of the matrix products

  void Load(Role role, std::int64_t bytes) { load[static_cast<int>(role)] += bytes; }
  void Store(Role role, std::int64_t bytes) { store[static_cast<int>(role)] += bytes; }
  std::int64_t bytes_read() const { return Sum(load); }
  std::int64_t bytes_written() const { return Sum(store); }
  std::int64_t bytes() const { return bytes_read() + bytes_written(); }

 private:
  static std::int64_t Sum(const std::array<std::int64_t, kRoles>& bytes) {
    std::int64_t sum = 0;
    for (std::int64_t part : bytes) sum += part;
    return sum;
  }
};

struct Tiles {
  std::int64_t tile_q = 0, tile_kv = 0;
  std::int64_t block_rows = 0;  // rows that V3 computes at once; 0: all that see a key tile
  std::int64_t strip_rows = 0;  // no more than this many where the mask ends within the key tile
  std::int64_t chunk = 0;       // keys of a partial result, when the keys are split; else 0
  // Bytes of an element of S, P, dP, dS in slow memory; scalars of a row beside a partial O: m and l,
  // or lse alone.
  std::int64_t score_bytes = 4, partial_scalars = 2;
};

// The words of the formulas: the walks over heads and tiles, and what several algorithms move.
class Model {
 protected:
  Model(const Layout& layout, const Tiles& tiles)
      : layout_(layout),
        tiles_(tiles),
        in_(ItemSize(layout.q.dtype)),
        d_(layout.head_dim),
        dv_(layout.head_dim_v) {}

  // `body` takes the sequence and the head.
  template <typename Body>
  void ForEachHead(const Body& body) const {
    for (std::int64_t b = 0; b < layout_.batch; ++b) {
      const Sequence sequence = layout_.At(b);
      for (std::int64_t h = 0; h < layout_.num_heads; ++h) body(sequence, h);
    }
  }
  template <typename Body>
  static void ForRows(const Sequence& s, std::int64_t step, const Body& body) {
    for (std::int64_t row = 0; row < s.seqlen_q; row += step) {
      body(row, std::min(step, s.seqlen_q - row));
    }
  }
  // `body` takes the sequence, the first row of the tile and its rows.
  template <typename Body>
  void ForEachQTile(const Body& body) const {
    ForEachHead([&](const Sequence& s, std::int64_t) {
      ForRows(s, tiles_.tile_q, [&](std::int64_t row, std::int64_t rows) { body(s, row, rows); });
    });
  }
  // A Q tile at a KV tile.
  struct Visit {
    std::int64_t rows, cols;
    std::int64_t seen;  // keys up to the last that one of the rows sees
    bool first;         // no Q tile of the same group of heads has visited this KV tile before
  };
  // KV outer, Q inner.
  template <typename Body>
  void ForEachVisit(std::int64_t group, const Body& body) const {
    ForEachHead([&](const Sequence& s, std::int64_t h) {
      for (std::int64_t key = 0; key < s.seqlen_k; key += tiles_.tile_kv) {
        const std::int64_t cols = std::min(tiles_.tile_kv, s.seqlen_k - key);
        bool first = h % group == 0;
        ForRows(s, tiles_.tile_q, [&](std::int64_t row, std::int64_t rows) {
          if (!Visits(s, row, rows, key)) return;
          const std::int64_t seen = std::min(cols, s.mask.Row(row + rows - 1).end - key);
          body(Visit{rows, cols, seen, first});
          first = false;
        });
      }
    });
  }
  bool Visits(const Sequence& s, std::int64_t row, std::int64_t rows, std::int64_t key) const {
    return VisitedTiles(s.mask, row, row + rows, tiles_.tile_kv).Contains(key / tiles_.tile_kv);
  }

  void Keys(std::int64_t cols) {
    traffic_.Load(Role::kK, cols * d_ * in_);
    traffic_.Load(Role::kV, cols * dv_ * in_);
  }
  void ScoreInputs(std::int64_t scores) {
    if (layout_.bias) traffic_.Load(Role::kBias, scores * ItemSize(layout_.bias.dtype));
    if (layout_.mask) traffic_.Load(Role::kMask, scores);
  }
  void LoadScores(std::initializer_list<Role> matrices, std::int64_t scores) {
    for (Role role : matrices) traffic_.Load(role, scores * tiles_.score_bytes);
  }
  void StoreScores(std::initializer_list<Role> matrices, std::int64_t scores) {
    for (Role role : matrices) traffic_.Store(role, scores * tiles_.score_bytes);
  }
  // Matrix products that are `depth` multiply-adds for each score.
  void Products(std::int64_t scores, std::int64_t depth) { traffic_.flops += 2 * scores * depth; }

  const Layout& layout_;
  const Tiles tiles_;
  const std::int64_t in_, d_, dv_;
  Traffic traffic_;
};

class ForwardModel : Model {
 public:
  ForwardModel(const Layout& layout, const Tiles& tiles, const ForwardOutput& output)
      : Model(layout, tiles),
        out_(ItemSize(output.o.dtype)),
        lse_(output.lse.present()),
        state_(output.row_max.present()) {}

  Traffic Standard() {
    ForEachQTile([&](const Sequence& s, std::int64_t, std::int64_t rows) {
      const std::int64_t scores = rows * s.seqlen_k;
      traffic_.Load(Role::kQ, rows * d_ * in_);
      Keys(s.seqlen_k);
      StoreScores({Role::kS, Role::kP}, scores);
      LoadScores({Role::kS, Role::kP}, scores);
      ScoreInputs(scores);
      Products(scores, d_ + dv_);
      Output(rows);
    });
    return traffic_;
  }

  // O, m, l of a Q tile in and out at every visit; K and V once.
  Traffic V1() {
    ForEachVisit(1, [&](const Visit& visit) {
      if (visit.first) Keys(visit.cols);
      traffic_.Load(Role::kQ, visit.rows * d_ * in_);
      State(visit.rows, true);
      ScoreInputs(visit.rows * visit.cols);
      Products(visit.rows * visit.cols, d_ + dv_);
    });
    ForEachQTile([&](const Sequence&, std::int64_t, std::int64_t rows) {
      State(rows, false);
      if (layout_.q.dtype != DType::kFloat32) {
        traffic_.Load(Role::kO, rows * dv_ * 4);
        traffic_.Store(Role::kO, rows * dv_ * out_);
      }
      for (Role role : {Role::kRowMax, Role::kRowSum}) {
        if (lse_ || state_) traffic_.Load(role, rows * 4);
        if (state_) traffic_.Store(role, rows * 4);
      }
      if (lse_) traffic_.Store(Role::kLse, rows * 4);
    });
    return traffic_;
  }

  // Q and O once, K and V at every visit; only rows that see one of the keys are computed, a strip
  // or block of rows at a time up to the last key that it sees.
  Traffic V2() {
    ForEachQTile([&](const Sequence& s, std::int64_t row, std::int64_t rows) {
      const TileRange range = VisitedTiles(s.mask, row, row + rows, tiles_.tile_kv);
      for (std::int64_t j = range.begin; j < range.end; ++j) {
        const std::int64_t begin = j * tiles_.tile_kv;
        const std::int64_t cols = std::min(tiles_.tile_kv, s.seqlen_k - begin);
        Keys(cols);
        const std::int64_t scores = Scores(
            s, {begin, begin + cols}, s.mask.RowsSeeing({begin, begin + cols}, {row, row + rows}));
        ScoreInputs(scores);
        Products(scores, d_ + dv_);
      }
      const std::int64_t parts = Parts(range);
      traffic_.Load(Role::kQ, (tiles_.chunk > 0 ? parts : 1) * rows * d_ * in_);
      if (tiles_.chunk > 0) {
        const std::int64_t bytes = parts * rows * (dv_ + tiles_.partial_scalars) * 4;
        traffic_.Store(Role::kPartial, bytes);
        traffic_.Load(Role::kPartial, bytes);
      }
      Output(rows);
    });
    return traffic_;
  }

 private:
  std::int64_t Scores(const Sequence& s, const KeyRange& keys, const RowRange& rows) const {
    const std::int64_t block = tiles_.block_rows == 0 ? tiles_.tile_q : tiles_.block_rows;
    const std::int64_t strip = std::min(block, tiles_.strip_rows);
    std::int64_t scores = 0;
    for (std::int64_t r = rows.begin, end = r; r < rows.end; r = end) {
      end = std::min(rows.end, r + (s.mask.Row(r).end < keys.end ? strip : block));
      scores += (end - r) * (std::min(keys.end, s.mask.Row(end - 1).end) - keys.begin);
    }
    return scores;
  }
  std::int64_t Parts(const TileRange& range) const {
    if (tiles_.chunk == 0 || range.empty()) return 0;
    const std::int64_t step = tiles_.chunk / tiles_.tile_kv;
    return CeilDiv(range.end, step) - range.begin / step;
  }
  void Output(std::int64_t rows) {
    traffic_.Store(Role::kO, rows * dv_ * out_);
    if (lse_) traffic_.Store(Role::kLse, rows * 4);
  }
  void State(std::int64_t rows, bool in) {
    const std::pair<Role, std::int64_t> parts[] = {
        {Role::kO, rows * dv_ * 4}, {Role::kRowMax, rows * 4}, {Role::kRowSum, rows * 4}};
    for (const auto& [role, bytes] : parts) {
      if (in) traffic_.Load(role, bytes);
      traffic_.Store(role, bytes);
    }
  }

  const std::int64_t out_;
  const bool lse_, state_;  // whether lse, and V1's row_max and row_sum, are asked for
};

// What Forward moves and computes when it runs `algorithm` with these tiles.
inline Traffic ForwardTraffic(const Layout& layout, Algorithm algorithm, const Tiles& tiles,
                              const ForwardOutput& output) {
  ForwardModel model(layout, tiles, output);
  switch (algorithm) {
    case Algorithm::kStandard: return model.Standard();
    case Algorithm::kV1: return model.V1();
    default: return model.V2();
  }
}

}  // namespace flashwok::io_model
