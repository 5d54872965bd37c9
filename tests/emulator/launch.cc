#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "block.h"

namespace flashwok::emulator {

void Launch(dim3 grid, int threads, std::size_t shared_bytes, const std::function<void()>& kernel,
            const Options& options) {
  if (threads < 32 || threads > 1024 || threads % 32 != 0) throw Error("threads of a block");
  static StackPool stacks;
  Random random(options.seed);
  const Policy policy = options.seed == 0 ? Policy{} : DrawPolicy(random);
  gridDim = grid;
  blockDim = dim3(static_cast<unsigned>(threads));
  std::vector<std::uint64_t> order(static_cast<std::uint64_t>(grid.x) * grid.y * grid.z);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  if (options.seed != 0 && !options.blocks_in_order) {
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[random.Below(static_cast<std::uint32_t>(i))]);
    }
  }
  std::vector<std::unique_ptr<Block>> resident;
  std::size_t next = 0;
  while (next < order.size() || !resident.empty()) {
    while (next < order.size() && static_cast<int>(resident.size()) < options.resident_blocks) {
      const std::uint64_t i = order[next++];
      const dim3 index(static_cast<unsigned>(i % grid.x),
                       static_cast<unsigned>(i / grid.x % grid.y),
                       static_cast<unsigned>(i / grid.x / grid.y));
      resident.push_back(
          std::make_unique<Block>(index, threads, shared_bytes, kernel, policy, random, stacks));
    }
    const std::size_t turn = random.Below(static_cast<std::uint32_t>(resident.size()));
    if (!resident[turn]->Step()) {
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(turn));
    }
  }
}

}  // namespace flashwok::emulator
