#include "cpu/parallel_for.h"

#include <algorithm>
#include <atomic>
#ifdef FLASHWOK_THREADS_openmp
#include <omp.h>
#endif
#ifdef FLASHWOK_THREADS_std
#include <system_error>
#include <thread>
#include <vector>
#endif

namespace flashwok {
namespace {

thread_local StopScope* innermost = nullptr;  // of the call that this thread is in

}  // namespace

StopScope::StopScope(std::int32_t (*stop)(void*), void* data)
    : stop_(stop), data_(data), outer_(innermost) {
  innermost = this;
}

StopScope::~StopScope() { innermost = outer_; }

void ParallelFor(int num_threads, std::int64_t count,
                 const std::function<void(int, std::int64_t)>& body) {
  std::atomic<std::int64_t> next{0};
  StopScope* const scope = innermost;
  // Asked before an index is taken: one that is taken is done, since a higher one may wait for it.
  const auto stopped = [scope](int worker) {
    if (scope == nullptr) return false;
    if (worker == 0) scope->Ask();
    return scope->stopped();
  };
  const auto work = [&](int worker) {
    while (!stopped(worker)) {
      const std::int64_t index = next.fetch_add(1);
      if (index >= count) return;
      body(worker, index);
    }
  };
  const int workers = static_cast<int>(std::min<std::int64_t>(num_threads, count));
  if (workers <= 1) {
    work(0);
    return;
  }
#if defined(FLASHWOK_THREADS_openmp)
#pragma omp parallel num_threads(workers)
  work(omp_get_thread_num());
#elif defined(FLASHWOK_THREADS_std)
  std::vector<std::thread> threads;
  try {
    for (int worker = 1; worker < workers; ++worker) threads.emplace_back(work, worker);
  } catch (const std::system_error&) {
    // Fewer threads than asked for: those that started share the work.
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
#else
  work(0);
#endif
}

int HardwareThreads() {
#if defined(FLASHWOK_THREADS_openmp)
  return omp_get_max_threads();
#elif defined(FLASHWOK_THREADS_std)
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
#else
  return 1;
#endif
}

}  // namespace flashwok
