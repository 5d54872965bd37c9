// Tensor maps and the tiles they describe. The rules are those of cuTensorMapEncodeTiled (CUDA
// driver API, "Tensor Map Object Management") and of cp.async.bulk.tensor (PTX ISA).
#include <algorithm>
#include <cstring>
#include <string>

#include "block.h"

namespace flashwok::emulator {
namespace {

static_assert(sizeof(TiledMap) <= sizeof(cuda::ptx::TensorMap));

void Require(bool condition, const char* what) {
  if (!condition) throw Error(std::string("a tensor map: ") + what);
}

// Calls visit(row of the box in bytes from its start, address of the tensor's row or nullptr
// outside the tensor).
template <class Visit>
void ForEachRow(const Tile& tile, Visit visit) {
  const TiledMap& map = tile.map;
  const int row_bytes = static_cast<int>(map.box[0]) * map.element_bytes;
  int offset = 0;
  for (std::uint32_t i3 = 0; i3 < map.box[3]; ++i3) {
    for (std::uint32_t i2 = 0; i2 < map.box[2]; ++i2) {
      for (std::uint32_t i1 = 0; i1 < map.box[1]; ++i1) {
        const std::uint32_t step[3] = {i1, i2, i3};
        bool inside = true;
        std::uint64_t row = 0;
        for (std::size_t d = 0; d < 3; ++d) {
          const std::int64_t at = static_cast<std::int64_t>(tile.coordinates[d + 1]) + step[d];
          inside = inside && at >= 0 && static_cast<std::uint64_t>(at) < map.sizes[d + 1];
          row += inside ? static_cast<std::uint64_t>(at) * map.strides[d] : 0;
        }
        visit(offset, inside ? map.base + row : nullptr);
        offset += row_bytes;
      }
    }
  }
}

// The part of a row that lies within the tensor: elements [first, last) of the box.
struct Span {
  std::int64_t first, last;
};
Span Inside(const Tile& tile) {
  const std::int64_t at = tile.coordinates[0];
  const auto box = static_cast<std::int64_t>(tile.map.box[0]);
  const auto size = static_cast<std::int64_t>(tile.map.sizes[0]);
  return {std::clamp<std::int64_t>(-at, 0, box), std::clamp<std::int64_t>(size - at, 0, box)};
}

}  // namespace

void EncodeTiled(cuda::ptx::TensorMap* map, int element_bytes, const void* base,
                 const std::uint64_t (&sizes)[4], const std::uint64_t (&strides)[3],
                 const std::uint32_t (&box)[4], int swizzle) {
  TiledMap tiled = {};
  tiled.magic = kMapMagic;
  tiled.base = static_cast<unsigned char*>(const_cast<void*>(base));
  tiled.element_bytes = static_cast<std::uint16_t>(element_bytes);
  tiled.swizzle = static_cast<std::uint16_t>(swizzle);
  std::copy_n(sizes, 4, tiled.sizes.begin());
  std::copy_n(strides, 3, tiled.strides.begin());
  std::copy_n(box, 4, tiled.box.begin());

  Require(reinterpret_cast<std::uintptr_t>(map) % 64 == 0, "not aligned to 64 bytes");
  Require(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8,
          "bytes of an element");
  Require(reinterpret_cast<std::uintptr_t>(base) % 16 == 0, "the base is not a multiple of 16");
  for (const std::uint64_t size : sizes) Require(size >= 1 && size <= 1ull << 32, "a size");
  for (const std::uint64_t stride : strides) {
    Require(stride % 16 == 0, "a stride is not a multiple of 16");
    Require(stride < 1ull << 40, "a stride of 2^40 or more");
  }
  for (const std::uint32_t side : box) Require(side >= 1 && side <= 256, "a side of the box");
  const int inner = static_cast<int>(box[0]) * element_bytes;
  Require(inner % 16 == 0, "the box's inner side is not a multiple of 16 bytes");
  Require(swizzle == 0 || swizzle == 32 || swizzle == 64 || swizzle == 128, "the swizzle");
  Require(swizzle == 0 || inner <= swizzle, "the box's inner side exceeds the swizzle");
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &tiled, sizeof(tiled));
}

Tile MakeTile(const void* map, std::uint32_t shared, const int (&coordinates)[4],
              const char* what) {
  CheckMap(map);
  Tile tile;
  std::memcpy(&tile.map, map, sizeof(tile.map));
  std::copy_n(coordinates, 4, tile.coordinates.begin());
  tile.shared = shared;
  Here().shared.At(shared, tile.map.box_bytes(), 128, what);
  return tile;
}

void ReadTile(SharedMemory& memory, const Tile& tile) {
  const int row_bytes = static_cast<int>(tile.map.box[0]) * tile.map.element_bytes;
  const Span span = Inside(tile);
  const std::int64_t bytes = tile.map.element_bytes;
  std::vector<unsigned char> row(static_cast<std::size_t>(row_bytes));
  ForEachRow(tile, [&](int offset, const unsigned char* global) {
    std::fill(row.begin(), row.end(), static_cast<unsigned char>(0));
    if (global != nullptr && span.first < span.last) {
      std::memcpy(row.data() + span.first * bytes,
                  global + (tile.coordinates[0] + span.first) * bytes,
                  static_cast<std::size_t>((span.last - span.first) * bytes));
    }
    for (int i = 0; i < row_bytes; i += 16) {
      const std::uint32_t address =
          SwizzledAddress(tile.shared + static_cast<std::uint32_t>(offset + i), tile.map.swizzle);
      std::memcpy(memory.At(address, 16, 16, "cp.async.bulk to shared"), row.data() + i, 16);
      memory.WroteAsync(address, 16);
    }
  });
}

std::vector<unsigned char> GatherTile(SharedMemory& memory, const Tile& tile) {
  // Unlike a load: an H200 calls it an illegal instruction.
  for (const int at : tile.coordinates) {
    if (at < 0) throw Error("cp.async.bulk to global: a coordinate is below 0");
  }
  const int bytes = tile.map.box_bytes();
  std::vector<unsigned char> data(static_cast<std::size_t>(bytes));
  for (int i = 0; i < bytes; i += 16) {
    const std::uint32_t address =
        SwizzledAddress(tile.shared + static_cast<std::uint32_t>(i), tile.map.swizzle);
    std::memcpy(data.data() + i, memory.At(address, 16, 16, "cp.async.bulk to global"), 16);
  }
  return data;
}

void WriteTile(const Tile& tile, const std::vector<unsigned char>& data) {
  const Span span = Inside(tile);
  const std::int64_t bytes = tile.map.element_bytes;
  ForEachRow(tile, [&](int offset, unsigned char* global) {
    if (global == nullptr || span.first >= span.last) return;
    std::memcpy(global + (tile.coordinates[0] + span.first) * bytes,
                data.data() + offset + span.first * bytes,
                static_cast<std::size_t>((span.last - span.first) * bytes));
  });
}

}  // namespace flashwok::emulator
