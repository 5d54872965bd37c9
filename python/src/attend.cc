#include "python/src/attend.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "api/plan.h"
#include "flashwok/attention.h"
#include "python/src/arguments.h"
#include "python/src/arrays.h"
#include "python/src/run.h"

namespace flashwok::python {
namespace {

// The fields of `tensors` and their names, in its order.
constexpr std::pair<const char*, Tensor Problem::*> kTensors[] = {
    {"bias", &Problem::bias},
    {"mask", &Problem::mask},
    {"alibi_slopes", &Problem::alibi_slopes},
    {"cu_seqlens_q", &Problem::cu_seqlens_q},
    {"cu_seqlens_k", &Problem::cu_seqlens_k},
    {"seqused_k", &Problem::seqused_k},
    {"page_table", &Problem::page_table},
    {"q_descale", &Problem::q_descale},
    {"k_descale", &Problem::k_descale},
    {"v_descale", &Problem::v_descale},
};
constexpr Py_ssize_t kScalars = 10;

PyObject* Item(nb::handle tuple, Py_ssize_t index, Py_ssize_t size) {
  if (!PyTuple_Check(tuple.ptr()) || PyTuple_Size(tuple.ptr()) != size) {
    throw nb::type_error(("must be a tuple of " + std::to_string(size)).c_str());
  }
  return PyTuple_GetItem(tuple.ptr(), index);  // borrowed
}

template <typename T>
T Get(nb::handle value, const char* name) {
  try {
    return nb::cast<T>(value);
  } catch (const nb::cast_error&) {
    RefuseValue(name, value);
  }
}

void ReadScalars(nb::handle scalars, nb::handle seed, Problem* p) {
  const auto get = [&](Py_ssize_t n) { return nb::handle(Item(scalars, n, kScalars)); };
  if (!get(0).is_none()) p->softmax_scale = Get<double>(get(0), "softmax_scale");
  p->causal = CausalFromName(Get<std::string>(get(1), "causal"));
  p->window_left = Get<std::int64_t>(get(2), "window");
  p->window_right = Get<std::int64_t>(get(3), "window");
  p->softcap = Get<double>(get(4), "softcap");
  p->dropout_p = Get<double>(get(5), "dropout_p");
  p->dropout_offset = Get<std::uint64_t>(get(6), "dropout_offset");
  p->num_splits = Get<int>(get(7), "num_splits");
  p->deterministic = Get<bool>(get(8), "deterministic");
  p->algorithm = AlgorithmFromName(Get<std::string>(get(9), "algorithm"));
  p->dropout_seed = Get<std::uint64_t>(seed, "dropout_seed");
}

// As the library has them, from [batch, num_heads, seqlen, head_dim].
void SwapHeads(Tensor* tensor) {
  if (tensor->rank != 4) return;
  std::swap(tensor->shape[1], tensor->shape[2]);
  std::swap(tensor->strides[1], tensor->strides[2]);
}

// The number to ask for so that no more than `most` threads run; 0: the plan has no more.
int Bounded(const Problem& problem, const Execution& execution, int most) {
  if (problem.q.device.type != DeviceType::kCpu || most <= 0) return 0;
  const Choice choice = Choose(problem, Pass::kForward, execution, false);
  return choice.plan.num_threads > most ? most : 0;
}

}  // namespace

void Attend(nb::handle q, nb::handle k, nb::handle v, nb::handle tensors, nb::handle o,
            nb::handle lse, nb::tuple scalars, nb::handle dropout_seed, nb::handle num_threads,
            int most_threads, nb::object stream, bool heads_first) {
  Problem problem;
  Arrays arrays(q, std::move(stream));
  problem.q = arrays.q();
  problem.k = arrays.Read(k, "k");
  problem.v = arrays.Read(v, "v");
  if (!tensors.is_none()) {
    constexpr Py_ssize_t kSize = std::size(kTensors);
    for (Py_ssize_t n = 0; n < kSize; ++n) {
      const auto& [name, field] = kTensors[n];
      problem.*field = arrays.Read(Item(tensors, n, kSize), name);
    }
  }
  ReadScalars(scalars, dropout_seed, &problem);
  ForwardOutput output;
  output.o = arrays.Read(o, "o", true);
  output.lse = arrays.Read(lse, "lse", true);
  if (heads_first) {
    for (Tensor* tensor : {&problem.q, &problem.k, &problem.v, &output.o}) SwapHeads(tensor);
  }
  Execution execution;
  execution.stream = arrays.stream();
  execution.num_threads = Get<int>(num_threads, "num_threads");
  if (execution.num_threads == 0) {
    execution.num_threads = Bounded(problem, execution, most_threads);
  }
  Run(problem, std::move(execution), nullptr,
      [&](const Execution& how) { return Forward(problem, output, how); });
}

}  // namespace flashwok::python
