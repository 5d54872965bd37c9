#include "python/src/arguments.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace flashwok::python {
namespace {

using Tensors = std::map<std::string, Tensor*>;
using Setters = std::map<std::string, std::function<void(nb::handle)>>;

[[noreturn]] void Unknown(const std::string& key) {
  throw nb::type_error((key + ": is no argument of this call").c_str());
}

void Fill(nb::dict from, const Tensors& to, bool results) {
  for (const auto [key, value] : from) {
    const std::string name = nb::cast<std::string>(key);
    const auto found = to.find(name);
    if (found == to.end()) Unknown(name);
    if (value.is_none()) continue;
    const Array& array = nb::cast<const Array&>(value);
    *found->second = results ? array.writable() : array.tensor();
  }
}

void Fill(nb::dict from, const Setters& to) {
  for (const auto [key, value] : from) {
    const std::string name = nb::cast<std::string>(key);
    const auto found = to.find(name);
    if (found == to.end()) Unknown(name);
    try {
      found->second(value);
    } catch (const nb::cast_error&) {
      RefuseValue(name, value);
    }
  }
}

template <typename T>
std::function<void(nb::handle)> Set(T& field) {
  return [&field](nb::handle value) { field = nb::cast<T>(value); };
}

// An enumerator by its name; `last` is the last one.
template <typename Enum>
Enum FromName(const char* argument, const std::string& name, Enum last) {
  for (int n = 0; n <= static_cast<int>(last); ++n) {
    if (name == Name(static_cast<Enum>(n))) return static_cast<Enum>(n);
  }
  std::string known;
  for (int n = 0; n <= static_cast<int>(last); ++n) {
    known += (n == 0 ? "" : ", ") + std::string(Name(static_cast<Enum>(n)));
  }
  throw nb::value_error(
      (std::string(argument) + ": is '" + name + "', must be one of " + known).c_str());
}

template <typename Enum>
std::function<void(nb::handle)> SetByName(Enum (*from_name)(const std::string&), Enum& field) {
  return [=, &field](nb::handle value) { field = from_name(nb::cast<std::string>(value)); };
}

}  // namespace

Problem MakeProblem(nb::dict tensors, nb::dict options) {
  Problem p;
  Fill(tensors,
       Tensors{{"q", &p.q},
               {"k", &p.k},
               {"v", &p.v},
               {"cu_seqlens_q", &p.cu_seqlens_q},
               {"cu_seqlens_k", &p.cu_seqlens_k},
               {"seqused_k", &p.seqused_k},
               {"page_table", &p.page_table},
               {"bias", &p.bias},
               {"mask", &p.mask},
               {"alibi_slopes", &p.alibi_slopes},
               {"q_descale", &p.q_descale},
               {"k_descale", &p.k_descale},
               {"v_descale", &p.v_descale}},
       false);
  Fill(options, Setters{{"softmax_scale",
                         [&p](nb::handle value) {
                           if (!value.is_none()) p.softmax_scale = nb::cast<double>(value);
                         }},
                        {"causal", SetByName(CausalFromName, p.causal)},
                        {"algorithm", SetByName(AlgorithmFromName, p.algorithm)},
                        {"window",
                         [&p](nb::handle value) {
                           std::tie(p.window_left, p.window_right) =
                               nb::cast<std::pair<std::int64_t, std::int64_t>>(value);
                         }},
                        {"softcap", Set(p.softcap)},
                        {"dropout_p", Set(p.dropout_p)},
                        {"dropout_seed", Set(p.dropout_seed)},
                        {"dropout_offset", Set(p.dropout_offset)},
                        {"num_splits", Set(p.num_splits)},
                        {"deterministic", Set(p.deterministic)}});
  return p;
}

ForwardOutput MakeOutput(nb::dict tensors) {
  ForwardOutput output;
  Fill(tensors,
       Tensors{{"o", &output.o},
               {"lse", &output.lse},
               {"row_max", &output.row_max},
               {"row_sum", &output.row_sum}},
       true);
  return output;
}

BackwardInput MakeInput(nb::dict tensors) {
  BackwardInput input;
  Fill(tensors,
       Tensors{{"o", &input.o},
               {"lse", &input.lse},
               {"dout", &input.dout},
               {"dlse", &input.dlse},
               {"row_max", &input.row_max},
               {"row_sum", &input.row_sum}},
       false);
  return input;
}

Gradients MakeGradients(nb::dict tensors) {
  Gradients gradients;
  Fill(tensors,
       Tensors{{"dq", &gradients.dq},
               {"dk", &gradients.dk},
               {"dv", &gradients.dv},
               {"dbias", &gradients.dbias}},
       true);
  return gradients;
}

Execution MakeExecution(nb::dict options) {
  Execution execution;
  Fill(options, Setters{{"num_threads", Set(execution.num_threads)},
                        {"workspace_limit", Set(execution.workspace_limit)},
                        {"tile_q", Set(execution.tile_q)},
                        {"tile_kv", Set(execution.tile_kv)},
                        {"kernel", Set(execution.kernel)},
                        {"stream", [&execution](nb::handle value) {
                           // DLPack's 1 and 2, the default streams, are handles of CUDA's too.
                           if (value.is_none()) return;
                           execution.stream =
                               reinterpret_cast<void*>(nb::cast<std::uintptr_t>(value));
                         }}});
  return execution;
}

Pass PassFromName(const std::string& name) { return FromName("pass", name, Pass::kBackward); }
Causal CausalFromName(const std::string& name) {
  return FromName("causal", name, Causal::kTopLeft);
}
Algorithm AlgorithmFromName(const std::string& name) {
  return FromName("algorithm", name, Algorithm::kV3);
}

void RefuseValue(const std::string& name, nb::handle value) {
  throw nb::type_error(
      (name + ": is " + nb::cast<std::string>(nb::repr(value)) + ", which is of another type")
          .c_str());
}

void Require(const Status& status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case StatusCode::kOk: return;
    case StatusCode::kCancelled: throw nb::python_error();
    case StatusCode::kInvalidArgument: type = PyExc_ValueError; break;
    case StatusCode::kUnsupported: type = PyExc_NotImplementedError; break;
    case StatusCode::kOutOfMemory: type = PyExc_MemoryError; break;
    case StatusCode::kInternal: break;
  }
  PyErr_SetString(type, status.message().c_str());
  throw nb::python_error();
}

}  // namespace flashwok::python
