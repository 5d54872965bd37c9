// Copies on their way: each thread's cp.async and TMA stores, and the block's TMA loads.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "device.h"

namespace flashwok::emulator {

class Block;
class SharedMemory;

// What EncodeTiled writes into a TensorMap.
struct TiledMap {
  std::uint64_t magic;
  unsigned char* base;
  std::array<std::uint64_t, 4> sizes;    // elements
  std::array<std::uint64_t, 3> strides;  // bytes
  std::array<std::uint32_t, 4> box;      // elements
  std::uint16_t element_bytes, swizzle;

  int box_bytes() const {
    return static_cast<int>(box[0] * box[1] * box[2] * box[3] * element_bytes);
  }
};
constexpr std::uint64_t kMapMagic = 0x666C617368776F6Bu;

struct Tile {
  TiledMap map;
  std::array<int, 4> coordinates;
  std::uint32_t shared;
};
void ReadTile(SharedMemory& memory, const Tile& tile);                   // into shared memory
std::vector<unsigned char> GatherTile(SharedMemory&, const Tile& tile);  // out of it
void WriteTile(const Tile& tile, const std::vector<unsigned char>& data);
Tile MakeTile(const void* map, std::uint32_t shared, const int (&coordinates)[4], const char* what);

struct ChunkCopy {
  std::uint32_t destination;
  const void* source;  // nullptr: zeros
};

struct TileStore {
  Tile tile;
  bool read = false, written = false;
  std::vector<unsigned char> data;
};

struct StoreGroup {
  std::vector<TileStore> stores;
  bool waited = false;  // for its reads
};

class ThreadCopies {
 public:
  void Copy(Block& block, const ChunkCopy& copy);
  void CommitCopies();
  void WaitCopies(Block& block, int pending);

  void Store(Block& block, const Tile& tile);
  void CommitStores();
  void WaitStores(Block& block, int pending, bool read_only);

  void Finish(Block& block);  // the thread ends

 private:
  static void Run(Block& block, const ChunkCopy& copy);
  static void Read(Block& block, TileStore& store);
  static void Write(TileStore& store);

  std::vector<ChunkCopy> open_copies_;
  std::deque<std::vector<ChunkCopy>> copies_;
  StoreGroup open_stores_;
  std::deque<StoreGroup> stores_;
};

struct TileLoad {
  Tile tile;
  std::uint32_t barrier;
};

class TileLoads {
 public:
  void Issue(Block& block, const TileLoad& load);
  bool empty() const { return loads_.empty(); }
  void RunOne(Block& block);
  void CheckEnd() const;

 private:
  static void Run(Block& block, const TileLoad& load);

  std::vector<TileLoad> loads_;
};

}  // namespace flashwok::emulator
