// The one place where threads are made.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace flashwok {

// Calls body(worker, index) for each index in [0, count), handed out in ascending order to at most
// `num_threads` workers with worker in [0, num_threads). Because the order is ascending, an index
// may wait for a lower one without a deadlock. Returns when all are done.
void ParallelFor(int num_threads, std::int64_t count,
                 const std::function<void(int, std::int64_t)>& body);

// While it lives, ParallelFor on the thread that made it asks `stop` before each index that this
// thread takes; once that is not 0, no worker takes another, in this loop or in later ones.
class StopScope {
 public:
  StopScope(std::int32_t (*stop)(void*), void* data);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  // On the thread that made it.
  void Ask() {
    if (stop_ != nullptr && !stopped() && stop_(data_) != 0) stopped_ = true;
  }

 private:
  std::int32_t (*stop_)(void*);
  void* data_;
  std::atomic<bool> stopped_{false};
  StopScope* outer_;
};

// Cores that this process may use.
int HardwareThreads();

}  // namespace flashwok
