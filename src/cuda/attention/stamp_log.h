// The time stamps of V3 as they lie in the device's memory: for each chosen block and each of its
// roles, what the role did, one mark after another.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashwok::cuda {

// What a role has done when it makes a mark; a step lasts from the mark before. `tile`: the KV tile
// that the mark names.
enum class V3Step : std::int32_t {
  // The producer.
  kNextWork,  // found and planned the next work tile
  kPlaceQ,    // waited for a place
  kPlaceK,
  kPlaceV,
  kLoadQ,  // gave a load to the copy engine
  kLoadK,
  kLoadV,
  // A consumer.
  kQ,  // waited for the copy engine's
  kK,
  kV,
  kTurn,    // waited for its turn at the tensor core, to give it tile's S
  kIssueS,  // gave it the product of Q and tile's K
  kIssueO,  // of P and tile's V
  kS,       // waited for these products
  kO,
  kSoftmax,   // of S, the scores' masks before it
  kRescale,   // of O, where the maximum moved with tile
  kPack,      // S to P
  kSkip,      // passed over a tile that none of its rows sees, in its turn
  kClose,     // stored lse
  kFinalize,  // divided O by l
  kStage,     // O to shared memory
  kStore,     // gave O's store to the copy engine, or without kStage before it stored O itself
  kStored,    // waited until the copy engine had read O
  // No step: names the role's next work tile, perhaps twice. `clock` is its batch << 32 | head,
  // `tile` its Q tile, or -1 when there is no more work.
  kWork,
};

// Whether a step is of the first work tile that is not stored, and not of the one named last: the
// next one's first S runs ahead of this one's end.
constexpr bool OfOutput(V3Step step) {
  switch (step) {
    case V3Step::kV:
    case V3Step::kIssueO:
    case V3Step::kO:
    case V3Step::kRescale:
    case V3Step::kSkip:
    case V3Step::kClose:
    case V3Step::kFinalize:
    case V3Step::kStage:
    case V3Step::kStore:
    case V3Step::kStored: return true;
    default: return false;
  }
}

struct alignas(16) StampMark {
  std::uint64_t clock;
  V3Step step;
  std::int32_t tile;  // or -1
};

// One moment on both clocks.
struct StampAnchor {
  std::uint64_t clock = 0;        // of the multiprocessor
  std::uint64_t nanoseconds = 0;  // of the device
};

struct StampTrack {
  StampAnchor begin, end;
  std::uint32_t count = 0;  // of the marks made; what is past the capacity was not kept
  std::uint32_t multiprocessor = 0;
};

// The marks of [num_blocks][kRoles][capacity] lie behind it. The host sets the first three.
struct alignas(16) StampLog {
  static constexpr int kMaxBlocks = 16;
  static constexpr int kRoles = 5;  // the producer and up to four consumers

  std::uint32_t num_blocks = 0;
  std::uint32_t capacity = 0;
  std::uint32_t blocks[kMaxBlocks] = {};  // their numbers in the grid
  StampTrack tracks[kMaxBlocks][kRoles];

  static std::size_t Bytes(std::size_t num_blocks, std::size_t capacity) {
    return sizeof(StampLog) + num_blocks * kRoles * capacity * sizeof(StampMark);
  }
};

}  // namespace flashwok::cuda
