#include "lib/device_memory.h"

#include <fmt/format.h>

#include "cuda/device.h"
#include "lib/command.h"
#include "lib/text.h"

namespace flashwok::cli {
namespace {

// From the first element to the end of the last.
std::size_t SpanBytes(const Tensor& tensor) {
  if (tensor.num_elements() == 0) return 0;
  std::int64_t last = 0;
  for (int axis = 0; axis < tensor.rank; ++axis) {
    last += (tensor.shape[axis] - 1) * tensor.strides[axis];
  }
  return static_cast<std::size_t>(last + 1) * static_cast<std::size_t>(ItemSize(tensor.dtype));
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  for (void* block : blocks_) cuda::Free(block);
}

void* DeviceMemory::Allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  blocks_.reserve(blocks_.size() + 1);  // so that a block is never lost
  void* block = nullptr;
  Require(cuda::Allocate(bytes, &block),
          fmt::format("cuda:{}: {}", device_.index, FormatBytes(static_cast<double>(bytes))));
  blocks_.push_back(block);
  return block;
}

Tensor DeviceMemory::Upload(const Tensor& host) {
  if (!host.present()) return host;
  Tensor copy = host;
  copy.device = device_;
  const std::size_t bytes = SpanBytes(host);
  copy.data = Allocate(bytes);
  if (bytes > 0) Require(cuda::CopyToDevice(copy.data, host.data, bytes));
  return copy;
}

void Download(const Tensor& copy, const Tensor& host) {
  const std::size_t bytes = SpanBytes(host);
  if (bytes > 0) Require(cuda::CopyToHost(host.data, copy.data, bytes));
}

std::vector<Tensor*> TensorsOf(Problem& p) {
  return {&p.q,         &p.k,         &p.v,         &p.cu_seqlens_q, &p.cu_seqlens_k,
          &p.bias,      &p.mask,      &p.seqused_k, &p.page_table,   &p.alibi_slopes,
          &p.q_descale, &p.k_descale, &p.v_descale};
}

Problem ShapesOn(Device device, Problem problem) {
  if (device.type == DeviceType::kCpu) return problem;
  for (Tensor* tensor : TensorsOf(problem)) {
    tensor->device = device;
    tensor->data = nullptr;
  }
  return problem;
}

}  // namespace flashwok::cli
