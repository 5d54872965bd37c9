// The backward pass in the words of io_model.h.
#pragma once

#include "common/io_model.h"

namespace flashwok::io_model {

class BackwardModel : Model {
 public:
  BackwardModel(const Layout& layout, const Tiles& tiles, const BackwardInput& input,
                const Gradients& gradients)
      : Model(layout, tiles),
        gradients_(gradients),
        out_(ItemSize(input.o.dtype)),
        dlse_(input.dlse.present()),
        state_(input.row_max.present()) {}

  // S and dP go out and come in, P and dS go out; dS comes in for dQ, and both once more for dK and
  // dV, there only in the tiles that a row sees.
  Traffic Standard() {
    Prepare(true);
    ForEachQTile([&](const Sequence& s, std::int64_t, std::int64_t rows) {
      const std::int64_t scores = rows * s.seqlen_k;
      QueryRows(rows);
      Keys(s.seqlen_k);                                // for S and dP
      traffic_.Load(Role::kK, s.seqlen_k * d_ * in_);  // for dQ
      StoreScores({Role::kS, Role::kDP, Role::kP, Role::kDS}, scores);
      LoadScores({Role::kS, Role::kDP, Role::kDS}, scores);
      ScoreInputs(scores);
      RowScalars({Role::kLse, Role::kD}, rows);
      AddToDQ(rows);
      Products(scores, 2 * d_ + dv_);
    });
    ForEachVisit(layout_.group, [&](const Visit& visit) {
      if (visit.first) Keys(visit.cols);
      QueryRows(visit.rows);
      LoadScores({Role::kP, Role::kDS}, visit.rows * visit.cols);
      Products(visit.rows * visit.cols, d_ + dv_);
    });
    return Finish();
  }

  // O, and m and l, of a Q tile at every visit, from which D and P are computed there.
  Traffic V1() {
    Prepare(false);
    ForEachVisit(layout_.group, [&](const Visit& visit) {
      FiveProducts(visit);
      Outputs(visit.rows);
      if (state_) {
        RowScalars({Role::kRowMax, Role::kRowSum}, visit.rows);
      } else {
        RowScalars({Role::kLse}, visit.rows);
      }
    });
    return Finish();
  }

  // lse and D of a Q tile at every visit. V3 moves and computes the same.
  Traffic V2() {
    Prepare(true);
    ForEachVisit(layout_.group, [&](const Visit& visit) {
      FiveProducts(visit);
      RowScalars({Role::kLse, Role::kD}, visit.rows);
    });
    return Finish();
  }

 private:
  // dQ = 0 in float32; D once for every row.
  void Prepare(bool with_D) {
    ForEachQTile([&](const Sequence&, std::int64_t, std::int64_t rows) {
      traffic_.Store(Role::kDQ, rows * d_ * 4);
      if (!with_D) return;
      Outputs(rows);
      traffic_.Load(Role::kDO, rows * dv_ * out_);
      traffic_.Store(Role::kD, rows * 4);
    });
  }

  // All five products of a Q tile with a KV tile; K and V stay for the whole group.
  void FiveProducts(const Visit& visit) {
    if (visit.first) Keys(visit.cols);
    QueryRows(visit.rows);
    ScoreInputs(visit.rows * visit.seen);
    AddToDQ(visit.rows);
    Products(visit.rows * visit.seen, 3 * d_ + 2 * dv_);
  }

  // A narrow dQ from its float32 sums; every row of dK and dV, also one without a key; dBias.
  Traffic Finish() {
    if (layout_.q.dtype != DType::kFloat32) {
      ForEachQTile([&](const Sequence&, std::int64_t, std::int64_t rows) {
        traffic_.Load(Role::kDQ, rows * d_ * 4);
        traffic_.Store(Role::kDQ, rows * d_ * ItemSize(gradients_.dq.dtype));
      });
    }
    StoreAll(Role::kDK, gradients_.dk);
    StoreAll(Role::kDV, gradients_.dv);
    if (gradients_.dbias.present()) BiasGradient();
    return traffic_;
  }

  // dBias = 0; then dS of every tile again, added to it in slow memory.
  void BiasGradient() {
    StoreAll(Role::kDBias, gradients_.dbias);
    const bool one_row = gradients_.dbias.shape[2] == 1;
    ForEachVisit(1, [&](const Visit& visit) {
      const std::int64_t scores = visit.rows * visit.cols;
      Keys(visit.cols);
      QueryRows(visit.rows);
      Outputs(visit.rows);
      RowScalars({Role::kLse}, visit.rows);
      ScoreInputs(scores);
      LoadScores({Role::kDBias}, one_row ? visit.cols : scores);
      StoreScores({Role::kDBias}, one_row ? visit.cols : scores);
      Products(scores, d_ + dv_);
    });
  }

  void QueryRows(std::int64_t rows) {
    traffic_.Load(Role::kQ, rows * d_ * in_);
    traffic_.Load(Role::kDO, rows * dv_ * out_);
  }
  // What D takes besides dO.
  void Outputs(std::int64_t rows) {
    traffic_.Load(Role::kO, rows * dv_ * out_);
    if (dlse_) RowScalars({Role::kDLse}, rows);
  }
  void RowScalars(std::initializer_list<Role> roles, std::int64_t rows) {
    for (Role role : roles) traffic_.Load(role, rows * 4);
  }
  void AddToDQ(std::int64_t rows) {
    traffic_.Load(Role::kDQ, rows * d_ * 4);
    traffic_.Store(Role::kDQ, rows * d_ * 4);
  }
  void StoreAll(Role role, const Tensor& tensor) {
    traffic_.Store(role, tensor.num_elements() * ItemSize(tensor.dtype));
  }

  const Gradients& gradients_;
  const std::int64_t out_;  // of O and dO
  const bool dlse_, state_;
};

// What Backward moves and computes when it runs `algorithm` with these tiles.
inline Traffic BackwardTraffic(const Layout& layout, Algorithm algorithm, const Tiles& tiles,
                               const BackwardInput& input, const Gradients& gradients) {
  BackwardModel model(layout, tiles, input, gradients);
  switch (algorithm) {
    case Algorithm::kStandard: return model.Standard();
    case Algorithm::kV1: return model.V1();
    default: return model.V2();
  }
}

}  // namespace flashwok::io_model
