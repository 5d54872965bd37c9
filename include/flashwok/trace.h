// What a kernel did: one event for each tile moved or computed. An Observer sees those up to kSkip;
// the others are of a GPU's timeline (docs/trace.md).
#pragma once

#include <cstdint>

#include "flashwok/export.h"

namespace flashwok {

enum class EventKind : std::uint8_t {
  kLoad,      // slow memory -> worktop; `bytes`
  kStore,     // worktop -> slow memory; `bytes`
  kProduct,   // a matrix product of two tiles; `flops`
  kSoftmax,   // row_max, exp2, row_sum of a score tile
  kRescale,   // the old part of O corrected for a larger maximum
  kFinalize,  // O divided by row_sum
  kSkip,      // a tile that no row of the Q tile sees: neither fetched nor computed
  kIssue,     // a load, a store or a product given to the unit that does it
  kWait,      // for what such a unit, or another role, makes or frees
  kTurn,      // waited for the turn at the tensor core
  kPack,      // a tile rounded to 16 bits: P for its product, O for its store
  kSchedule,  // the next work tile found
};

// Which tensor an event touches. For a product: the tensor that it adds to.
enum class Role : std::uint8_t {
  kQ,
  kK,
  kV,
  kO,
  kS,
  kP,
  kLse,
  kRowMax,
  kRowSum,
  kDO,
  kDQ,
  kDK,
  kDV,
  kDP,
  kDS,
  kD,
  kBias,
  kMask,
  kDBias,
  kPartial,
  kDLse,
};

FLASHWOK_EXPORT const char* Name(EventKind kind);
FLASHWOK_EXPORT const char* Name(Role role);

// Times are nanoseconds of a steady clock; t0 counts from the start of the call.
struct Event {
  std::int64_t t0 = 0;
  std::int64_t duration = 0;
  std::int64_t bytes = 0;
  std::int64_t flops = 0;
  EventKind kind = EventKind::kLoad;
  Role role = Role::kQ;
  std::uint8_t stage = 0;  // which buffer of a multi-stage pipeline
  std::uint8_t masked = 0;
  std::int32_t track = 0;  // the worker
  std::int32_t head = 0;   // batch * num_heads + head (of Q)
  std::int32_t q_tile = -1;
  std::int32_t k_tile = -1;
};

// Called by the workers of a call, concurrently: events of one track come from one thread, in
// order. It must not throw. A kernel with a null observer only tests that pointer once a tile.
class FLASHWOK_EXPORT Observer {
 public:
  virtual ~Observer() = default;
  virtual void OnEvent(const Event& event) = 0;
};

}  // namespace flashwok
