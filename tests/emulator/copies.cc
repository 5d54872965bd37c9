#include "copies.h"

#include <cstring>
#include <utility>

#include "block.h"

namespace flashwok::emulator {

void ThreadCopies::Run(Block& block, const ChunkCopy& copy) {
  unsigned char* destination = block.shared.At(copy.destination, 16, 16, "cp.async");
  if (copy.source == nullptr) {
    std::memset(destination, 0, 16);
  } else {
    std::memcpy(destination, copy.source, 16);
  }
  block.shared.Wrote(copy.destination, 16, block.thread(), block.Tick());
}

void ThreadCopies::Copy(Block& block, const ChunkCopy& copy) {
  block.shared.At(copy.destination, 16, 16, "cp.async");
  if (reinterpret_cast<std::uintptr_t>(copy.source) % 16 != 0) {
    throw Error("cp.async: the source is not a multiple of 16");
  }
  if (block.random.Chance(block.policy.copy_now)) {
    Run(block, copy);
  } else {
    open_copies_.push_back(copy);
  }
}

void ThreadCopies::CommitCopies() { copies_.push_back(std::exchange(open_copies_, {})); }

void ThreadCopies::WaitCopies(Block& block, int pending) {
  while (static_cast<int>(copies_.size()) > pending) {
    for (const ChunkCopy& copy : copies_.front()) Run(block, copy);
    copies_.pop_front();
  }
}

void ThreadCopies::Read(Block& block, TileStore& store) {
  if (store.read) return;
  store.data = GatherTile(block.shared, store.tile);
  store.read = true;
}

void ThreadCopies::Write(TileStore& store) {
  if (store.written) return;
  WriteTile(store.tile, store.data);
  store.written = true;
}

void ThreadCopies::Store(Block& block, const Tile& tile) {
  block.shared.CheckFenced(tile.shared, tile.map.box_bytes(), "cp.async.bulk");
  TileStore store{tile, false, false, {}};
  if (block.random.Chance(block.policy.store_now)) {
    Read(block, store);
    if (block.random.Chance(block.policy.write_now)) Write(store);
  }
  open_stores_.stores.push_back(std::move(store));
}

void ThreadCopies::CommitStores() { stores_.push_back(std::exchange(open_stores_, {})); }

void ThreadCopies::WaitStores(Block& block, int pending, bool read_only) {
  const int covered = static_cast<int>(stores_.size()) - pending;
  for (int i = 0; i < covered; ++i) {
    StoreGroup& group = stores_[static_cast<std::size_t>(i)];
    group.waited = true;
    for (TileStore& store : group.stores) {
      Read(block, store);
      if (!read_only) Write(store);
    }
  }
  if (read_only) return;
  for (int i = 0; i < covered; ++i) stores_.pop_front();
}

void ThreadCopies::Finish(Block& block) {
  if (!open_stores_.stores.empty()) throw Error("a thread ends with TMA stores not committed");
  for (StoreGroup& group : stores_) {
    if (!group.waited) {
      throw Error("a thread ends before its TMA stores have read the shared memory");
    }
    for (TileStore& store : group.stores) Write(store);
  }
  CommitCopies();
  WaitCopies(block, 0);
}

void TileLoads::Run(Block& block, const TileLoad& load) {
  ReadTile(block.shared, load.tile);
  block.barriers.Complete(block, load.barrier,
                          static_cast<std::uint32_t>(load.tile.map.box_bytes()));
}

void TileLoads::Issue(Block& block, const TileLoad& load) {
  if (block.random.Chance(block.policy.load_now)) {
    Run(block, load);
  } else {
    loads_.push_back(load);
  }
}

void TileLoads::RunOne(Block& block) {
  const std::uint32_t picked = block.random.Below(static_cast<std::uint32_t>(loads_.size()));
  const TileLoad load = loads_[picked];
  loads_.erase(loads_.begin() + picked);
  Run(block, load);
}

void TileLoads::CheckEnd() const {
  if (!loads_.empty()) throw Error("a block ends before its TMA loads have come");
}

void CopyAsync(std::uint32_t destination, const void* source, bool valid) {
  Block& block = Here();
  block.self().copies.Copy(block, {destination, valid ? source : nullptr});
}
void CommitCopies() { Here().self().copies.CommitCopies(); }
void WaitCopies(int pending) {
  Block& block = Here();
  block.self().copies.WaitCopies(block, pending);
}

void CheckMap(const void* map) {
  std::uint64_t magic;
  std::memcpy(&magic, map, sizeof(magic));
  if (magic != kMapMagic) throw Error("a tensor map that EncodeTiled did not write");
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0) throw Error("a tensor map not aligned");
}

void LoadTile(std::uint32_t destination, const void* map, std::uint32_t barrier,
              const int (&coordinates)[4]) {
  Block& block = Here();
  const Tile tile = MakeTile(map, destination, coordinates, "cp.async.bulk to shared");
  block.barriers.CheckFencedInit(block, barrier);
  block.loads.Issue(block, {tile, barrier});
}
void StoreTile(const void* map, std::uint32_t source, const int (&coordinates)[4]) {
  Block& block = Here();
  block.self().copies.Store(block, MakeTile(map, source, coordinates, "cp.async.bulk to global"));
}
void CommitStores() { Here().self().copies.CommitStores(); }
void WaitStores(int pending, bool read_only) {
  Block& block = Here();
  block.self().copies.WaitStores(block, pending, read_only);
}

}  // namespace flashwok::emulator
