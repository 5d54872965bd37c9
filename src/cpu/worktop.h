// The worktop: the small tiles in cache between which the kernels work, the arena that they are cut
// from, and the tracer that tells an Observer what moves.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "common/layout.h"
#include "cpu/bf16_products.h"
#include "cpu/tile_ld.h"
#include "flashwok/attention.h"

namespace flashwok::cpu {

// Every tile is row-major with the leading dimension kTileLd.
inline constexpr int kMaxTileCols = 256;  // head_dim, head_dim_v and tile_kv stay within it

// Keys are taken in chunks of this many; each chunk starts a fresh softmax state, and the states
// are merged in order. So splitting the keys among workers changes no bit.
inline constexpr std::int64_t kChunk = 2048;

// Rows computed at once where the mask ends within the tile: few, for what it hides of them is
// computed up to the last key that one of them sees. A whole number of blocks of the micro-kernel.
inline constexpr std::int64_t kStripRows = 48;

// Cuts aligned pieces from one block of memory; with a null base it only counts, up to kTooMuch,
// which is always refused.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

  // A piece of extent * ... elements.
  template <typename T, typename... Extents>
  T* Take(Extents... extents) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    std::uint64_t bytes = sizeof(T);
    for (std::uint64_t extent : {static_cast<std::uint64_t>(extents)...}) {
      if (__builtin_mul_overflow(bytes, extent, &bytes)) bytes = kTooMuch;
    }
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, kTooMuch));
    used_ = std::min(used_ + (size + kAlign - 1) / kAlign * kAlign, kTooMuch);
    return piece;
  }
  float* Tile(std::int64_t rows) { return Take<float>(rows, kTileLd); }
  std::size_t used() const { return used_; }

  static constexpr std::size_t kAlign = 64;
  static constexpr std::size_t kTooMuch = std::numeric_limits<std::size_t>::max() / 4 + 1;

 private:
  char* base_;
  std::size_t used_ = 0;
};

// What a kernel is given besides the problem.
struct Launch {
  int num_threads = 1;
  int tile_q = 0;
  int tile_kv = 0;
  std::int64_t chunk = kChunk;  // keys between two merges, a multiple of tile_kv
  bool split = false;           // workers share the chunks of a Q tile
  void* workspace = nullptr;
  Observer* observer = nullptr;
  const Bf16Products* bf16 = nullptr;  // by which V3 multiplies bfloat16 tiles; null: as float32
};

inline Launch With(const Bf16Products* products, Launch launch) {
  launch.bf16 = products;
  return launch;
}

// The running state of the rows of a Q tile; scores and row_max in units of log2.
struct RowState {
  float* row_max;
  float* row_sum;
  float* alpha;  // what the last tile's larger maximum makes of the old part
};

inline RowState TakeRowState(Arena& arena, std::int64_t rows) {
  float* row_max = arena.Take<float>(rows);
  float* row_sum = arena.Take<float>(rows);
  return {row_max, row_sum, arena.Take<float>(rows)};
}

// The tiles of one worker.
struct ForwardWorktop {
  ForwardWorktop(Arena& arena, const Launch& launch, std::int64_t head_dim)
      : ForwardWorktop(arena, launch, head_dim, launch.tile_q) {}
  // With scores of some rows of the Q tile only.
  ForwardWorktop(Arena& arena, const Launch& launch, std::int64_t head_dim, std::int64_t score_rows)
      : Q(arena.Tile(launch.tile_q)),       // [kTileQ, head_dim]
        KT(arena.Tile(head_dim)),           // [head_dim, kTileKV]
        V(arena.Tile(launch.tile_kv)),      // [kTileKV, head_dim_v]
        S(arena.Tile(score_rows)),          // [score_rows, kTileKV], then P in place
        O(arena.Tile(launch.tile_q)),       // [kTileQ, head_dim_v]
        O_part(arena.Tile(launch.tile_q)),  // the same, of one chunk
        state(TakeRowState(arena, launch.tile_q)),
        state_part(TakeRowState(arena, launch.tile_q)) {}

  float *Q, *KT, *V, *S, *O, *O_part;
  RowState state, state_part;
};

// One Q tile of one head: what a V2 worker owns.
struct QTile {
  std::int64_t batch = 0, head = 0, head_kv = 0;
  std::int64_t index = 0;      // of the tile in its sequence
  std::int64_t row_begin = 0;  // in the sequence
  std::int64_t rows = 0;
  std::int64_t batch_head = 0;
  Sequence sequence;
};

// Walks the Q tiles of a problem, heads outermost within a batch.
class QTiles {
 public:
  QTiles(const Layout& layout, int tile_q)
      : layout_(layout), tile_q_(tile_q), per_head_(CeilTiles(layout.max_seqlen_q, tile_q)) {}

  std::int64_t count() const { return layout_.batch * layout_.num_heads * per_head_; }
  std::int64_t per_head() const { return per_head_; }

  // Tile number `index`; one past the end of a short sequence has rows == 0. Last rows first, so
  // that under a causal mask the longest tiles start first.
  QTile At(std::int64_t index) const {
    QTile tile;
    tile.index = per_head_ - 1 - index % per_head_;
    tile.batch_head = index / per_head_;
    tile.batch = tile.batch_head / layout_.num_heads;
    tile.head = tile.batch_head % layout_.num_heads;
    tile.head_kv = tile.head / layout_.group;
    tile.sequence = layout_.At(tile.batch);
    tile.row_begin = tile.index * tile_q_;
    tile.rows = std::clamp<std::int64_t>(tile.sequence.seqlen_q - tile.row_begin, 0, tile_q_);
    return tile;
  }

 private:
  static std::int64_t CeilTiles(std::int64_t rows, std::int64_t tile) {
    return (rows + tile - 1) / tile;
  }
  const Layout& layout_;
  int tile_q_;
  std::int64_t per_head_;
};

// Emits one event for the scope that it lives in; costs a pointer test when nobody observes.
class Tracer {
 public:
  Tracer(Observer* observer, int track, std::chrono::steady_clock::time_point start)
      : observer_(observer), track_(track), start_(start) {}

  class Span {
   public:
    Span(const Tracer& tracer, const Event& event) : tracer_(tracer), event_(event) {
      if (tracer_.observer_ != nullptr) event_.t0 = tracer_.Now();
    }
    ~Span() {
      if (tracer_.observer_ == nullptr) return;
      event_.duration = tracer_.Now() - event_.t0;
      tracer_.observer_->OnEvent(event_);
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    const Tracer& tracer_;
    Event event_;
  };

  // Where the tile that an event touches lies in the problem.
  struct Place {
    std::int64_t batch_head, q_tile, k_tile;
    std::int64_t stage = 0;
  };

  Span Move(EventKind kind, Role role, std::int64_t bytes, const Place& place) const {
    return Span(*this, Make(kind, role, bytes, 0, place));
  }
  Span Load(Role role, std::int64_t bytes, const Place& place) const {
    return Move(EventKind::kLoad, role, bytes, place);
  }
  Span Store(Role role, std::int64_t bytes, const Place& place) const {
    return Move(EventKind::kStore, role, bytes, place);
  }
  Span Product(Role role, std::int64_t flops, const Place& place) const {
    return Span(*this, Make(EventKind::kProduct, role, 0, flops, place));
  }
  Span Work(EventKind kind, Role role, const Place& place, bool masked = false) const {
    Event event = Make(kind, role, 0, 0, place);
    event.masked = masked;
    return Span(*this, event);
  }
  bool active() const { return observer_ != nullptr; }

 private:
  std::int64_t Now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                                start_)
        .count();
  }
  Event Make(EventKind kind, Role role, std::int64_t bytes, std::int64_t flops,
             const Place& place) const {
    Event event;
    event.bytes = bytes;
    event.flops = flops;
    event.kind = kind;
    event.role = role;
    event.stage = static_cast<std::uint8_t>(place.stage);
    event.track = track_;
    event.head = static_cast<std::int32_t>(place.batch_head);
    event.q_tile = static_cast<std::int32_t>(place.q_tile);
    event.k_tile = static_cast<std::int32_t>(place.k_tile);
    return event;
  }

  Observer* observer_;
  int track_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace flashwok::cpu
