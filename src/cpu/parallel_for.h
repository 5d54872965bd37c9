// The one place where threads are made.
#pragma once

#include <cstdint>
#include <functional>

namespace flashwok {

// Calls body(worker, index) for each index in [0, count), handed out in ascending order to at most
// `num_threads` workers with worker in [0, num_threads). Because the order is ascending, an index
// may wait for a lower one without a deadlock. Returns when all are done.
void ParallelFor(int num_threads, std::int64_t count,
                 const std::function<void(int, std::int64_t)>& body);

// Cores that this process may use.
int HardwareThreads();

}  // namespace flashwok
