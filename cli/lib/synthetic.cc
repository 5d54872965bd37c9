// Tensors made from a seed: the same numbers on every machine.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "common/dtype.h"
#include "common/philox.h"
#include "lib/command.h"
#include "lib/workload.h"

namespace flashwok::cli {
namespace {

struct Shape {
  std::int64_t batch = 1, seqlen_q = 1024, seqlen_k = 1024, num_heads = 8, num_heads_kv = 8;
  std::int64_t head_dim = 64, head_dim_v = 64;
};

Shape ParseShape(const std::string& text) {
  Shape shape;
  const std::vector<std::string> parts = Split(text, ',');
  std::int64_t* const slots[] = {&shape.batch,     &shape.seqlen_q,     &shape.seqlen_k,
                                 &shape.num_heads, &shape.num_heads_kv, &shape.head_dim,
                                 &shape.head_dim_v};
  if (parts.size() < 6 || parts.size() > 7) {
    throw BadInput(fmt::format(
        "--shape: is '{}', must be BATCH,SEQLEN_Q,SEQLEN_K,HEADS,HEADS_KV,HEAD_DIM[,HEAD_DIM_V]",
        text));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) *slots[i] = ParseInt("--shape", parts[i]);
  if (parts.size() == 6) shape.head_dim_v = shape.head_dim;
  return shape;
}

Shape MakeShape(const WorkloadOptions& options) {
  Shape shape = options.shape.empty() ? Shape{} : ParseShape(options.shape);
  const auto set = [](std::int64_t& slot, const std::optional<std::int64_t>& value) {
    if (value) slot = *value;
  };
  set(shape.batch, options.batch);
  set(shape.seqlen_q, options.seqlen);
  set(shape.seqlen_k, options.seqlen);
  set(shape.seqlen_q, options.seqlen_q);
  set(shape.seqlen_k, options.seqlen_k);
  set(shape.num_heads, options.num_heads);
  set(shape.num_heads_kv, options.num_heads);
  set(shape.num_heads_kv, options.num_heads_kv);
  set(shape.head_dim, options.head_dim);
  set(shape.head_dim_v, options.head_dim);
  set(shape.head_dim_v, options.head_dim_v);
  return shape;
}

// Without data: enough for Plan, whatever the size.
Tensor Contiguous(DType dtype, const std::vector<std::int64_t>& shape) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (int axis = tensor.rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = stride;
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(1, shape[axis]), &stride)) {
      throw BadInput("--shape: has more elements than fit in 63 bits");
    }
  }
  return tensor;
}

DType SyntheticType(const WorkloadOptions& options) {
  return options.dtype.empty() ? DType::kFloat32 : ParseDType("--dtype", options.dtype);
}

// Four N(0, 1) numbers a block, by Box and Muller.
std::array<float, 4> Normals(std::uint64_t seed, std::uint64_t block) {
  const PhiloxCounter bits =
      Philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  std::array<float, 4> normals{};
  for (std::size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log((bits[2 * pair] + 0.5) * 0x1p-32));
    const double angle = 2.0 * std::numbers::pi * bits[2 * pair + 1] * 0x1p-32;
    normals[2 * pair] = static_cast<float>(radius * std::cos(angle));
    normals[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return normals;
}

constexpr std::uint64_t kMaxSeed = std::numeric_limits<std::uint64_t>::max() / 4;

// Refuses what cannot fit, before the first allocation; the machine's memory only for `with_data`.
void RequireMemory(std::initializer_list<std::array<std::int64_t, 4>> shapes, DType dtype,
                   bool with_data) {
  double bytes = 0.0;
  for (const auto& shape : shapes) {
    double count = ItemSize(dtype);
    for (std::int64_t extent : shape) {
      if (extent < 0 || extent > 0x7FFFFFFF) {
        throw BadInput(
            fmt::format("--shape: has an extent of {}, must be from 0 to 2147483647", extent));
      }
      count *= static_cast<double>(extent);
    }
    bytes += count;
  }
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (with_data && bytes > memory) {
    throw BadInput(fmt::format("--shape: the tensors need {}, this machine has {} of memory",
                               FormatBytes(bytes), FormatBytes(memory)));
  }
}

}  // namespace

void Workload::MakeAll(const WorkloadOptions& options, Pass pass) {
  const Shape s = MakeShape(options);
  const DType dtype = SyntheticType(options);
  const std::array<std::int64_t, 4> q{s.batch, s.seqlen_q, s.num_heads, s.head_dim};
  const std::array<std::int64_t, 4> k{s.batch, s.seqlen_k, s.num_heads_kv, s.head_dim};
  const std::array<std::int64_t, 4> v{s.batch, s.seqlen_k, s.num_heads_kv, s.head_dim_v};
  const std::array<std::int64_t, 4> o{s.batch, s.seqlen_q, s.num_heads, s.head_dim_v};
  RequireMemory({q, k, v, o}, dtype, with_data_);
  if (options.seed > kMaxSeed) {
    throw BadInput(fmt::format("--seed: is {}, must be from 0 to {}", options.seed, kMaxSeed));
  }
  problem.q = Random(q, dtype, options.seed * 4);
  problem.k = Random(k, dtype, options.seed * 4 + 1);
  problem.v = Random(v, dtype, options.seed * 4 + 2);
  if (pass == Pass::kBackward) dout = Random(o, dtype, options.seed * 4 + 3);
}

// Varlen: the rows of all sequences in one axis, batch * seqlen of them.
Tensor Workload::Random(std::array<std::int64_t, 4> shape, DType dtype, std::uint64_t seed) {
  std::vector<std::int64_t> extents(shape.begin(), shape.end());
  if (sources_.count("cu_seqlens_q") != 0) {
    extents.erase(extents.begin());
    extents[0] *= shape[0];
  }
  if (bhsd_) std::swap(extents[extents.size() - 3], extents[extents.size() - 2]);
  if (!with_data_) {
    const Tensor tensor = Contiguous(dtype, extents);
    return bhsd_ ? SwapHeads(tensor) : tensor;
  }
  const Tensor tensor = Store(io::HostTensor::Make(dtype, extents));
  const std::int64_t count = tensor.num_elements();
  for (std::int64_t i = 0; i < count; i += 4) {
    const std::array<float, 4> normals = Normals(seed, static_cast<std::uint64_t>(i / 4));
    for (std::int64_t j = 0; j < std::min<std::int64_t>(4, count - i); ++j) {
      StoreFromFloat(tensor.data, dtype, i + j, normals[static_cast<std::size_t>(j)]);
    }
  }
  return bhsd_ ? SwapHeads(tensor) : tensor;
}

}  // namespace flashwok::cli
