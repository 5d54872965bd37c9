#include "python/src/run.h"

#include <unistd.h>

#include <atomic>

namespace flashwok::python {

void RequireSameProcess(const Tensor& tensor) {
  if (tensor.device.type != DeviceType::kCuda) return;
  static std::atomic<pid_t> user{0};
  pid_t none = 0;
  if (!user.compare_exchange_strong(none, getpid()) && none != getpid()) {
    Require({StatusCode::kInternal,
             "CUDA was used before this process was forked, and cannot be used in it; start "
             "processes with multiprocessing's 'spawn' or 'forkserver'"});
  }
}

}  // namespace flashwok::python
