// flashwok._core: the library's calls for the Python package, which makes the arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "api/validate.h"
#include "cuda/device.h"
#include "flashwok/attention.h"
#include "python/src/arguments.h"
#include "python/src/array.h"
#include "python/src/attend.h"
#include "python/src/jax_ffi.h"
#include "python/src/observers.h"
#include "python/src/run.h"
#include "reference/reference.h"

namespace flashwok::python {
namespace {

using namespace nb::literals;

nb::object RunForward(nb::dict tensors, nb::dict options, nb::dict outputs, nb::dict run,
                      bool record) {
  const Problem problem = MakeProblem(tensors, options);
  const ForwardOutput output = MakeOutput(outputs);
  std::optional<Recorder> recorder;
  if (record) recorder.emplace();
  Run(problem, MakeExecution(run), record ? &*recorder : nullptr,
      [&](const Execution& execution) { return Forward(problem, output, execution); });
  if (!record) return nb::none();
  const std::string bytes = recorder->Bytes();
  return nb::bytes(bytes.data(), bytes.size());
}

nb::object RunBackward(nb::dict tensors, nb::dict options, nb::dict inputs, nb::dict gradients,
                       nb::dict run, bool record) {
  const Problem problem = MakeProblem(tensors, options);
  const BackwardInput input = MakeInput(inputs);
  const Gradients results = MakeGradients(gradients);
  std::optional<Recorder> recorder;
  if (record) recorder.emplace();
  Run(problem, MakeExecution(run), record ? &*recorder : nullptr,
      [&](const Execution& execution) { return Backward(problem, input, results, execution); });
  if (!record) return nb::none();
  const std::string bytes = recorder->Bytes();
  return nb::bytes(bytes.data(), bytes.size());
}

nb::dict PlanDict(nb::dict tensors, nb::dict options, const std::string& pass, nb::dict run) {
  const Problem problem = MakeProblem(tensors, options);
  const PlanResult plan = Plan(problem, PassFromName(pass), MakeExecution(run));
  nb::list rejections;
  for (const Rejection& rejection : plan.rejections) {
    rejections.append(nb::make_tuple(rejection.kernel, rejection.reason));
  }
  nb::dict result;
  result["ok"] = plan.status.ok();
  result["refused"] = plan.status.message();
  result["kernel"] = plan.kernel;
  result["algorithm"] = Name(plan.algorithm);
  result["tile_q"] = plan.tile_q;
  result["tile_kv"] = plan.tile_kv;
  result["num_splits"] = plan.num_splits;
  result["num_threads"] = plan.num_threads;
  result["workspace_bytes"] = plan.workspace_bytes;
  result["rejections"] = rejections;
  return result;
}

// Bytes that the formulas of io_model say a forward pass moves.
std::int64_t ModelBytes(nb::dict tensors, nb::dict options, nb::dict outputs, nb::dict run) {
  std::int64_t read = 0, written = 0;
  Require(ForwardBytes(MakeProblem(tensors, options), MakeOutput(outputs), MakeExecution(run),
                       &read, &written));
  return read + written;
}

// The float64 result, as the bytes of o and of lse.
nb::tuple Reference(nb::dict tensors, nb::dict options) {
  const Problem problem = MakeProblem(tensors, options);
  Status status = Validate(problem, Pass::kForward);
  if (status.ok()) status = ValidatePointers(problem);
  Require(status);
  if (problem.q.device.type != DeviceType::kCpu) {
    throw nb::value_error("q: is on cuda; the float64 reference runs on the CPU alone");
  }
  reference::ForwardResult result;
  {
    nb::gil_scoped_release release;
    result = reference::Forward(problem);
  }
  const auto bytes = [](const std::vector<double>& values) {
    return nb::bytes(values.data(), values.size() * sizeof(double));
  };
  return nb::make_tuple(bytes(result.o), bytes(result.lse));
}

void Merge(const Array& o_a, const Array& lse_a, const Array& o_b, const Array& lse_b,
           const Array& o, const Array& lse, nb::dict run) {
  const Tensor& to_o = o.writable();
  const Tensor& to_lse = lse.writable();
  const Execution execution = MakeExecution(run);
  RequireSameProcess(o_a.tensor());
  Status status;
  {
    nb::gil_scoped_release release;
    status = MergeStates(o_a.tensor(), lse_a.tensor(), o_b.tensor(), lse_b.tensor(), to_o, to_lse,
                         execution);
  }
  Require(status);
}

void Quantize(const Array& x, const Array& values, const Array& descale) {
  const Tensor& to_values = values.writable();
  const Tensor& to_descale = descale.writable();
  Status status;
  {
    nb::gil_scoped_release release;
    status = QuantizeFloat8(x.tensor(), to_values, to_descale);
  }
  Require(status);
}

nb::list KernelList() {
  nb::list kernels;
  for (const KernelInfo& info : Kernels()) {
    nb::dict kernel;
    kernel["name"] = info.name;
    kernel["pass"] = Name(info.pass);
    kernel["algorithm"] = Name(info.algorithm);
    kernel["device"] = info.device.type == DeviceType::kCpu ? "cpu" : "cuda";
    kernel["dtypes"] = info.dtypes;
    kernel["requirement"] = info.requirement;
    kernel["available"] = info.available;
    kernels.append(kernel);
  }
  return kernels;
}

nb::list DeviceList() {
  nb::list devices;
  for (int n = 0; n < cuda::DeviceCount(); ++n) {
    devices.append(nb::make_tuple(cuda::DeviceName(n), cuda::Architecture(n)));
  }
  return devices;
}

nb::list Names(int count, const char* (*name)(int)) {
  nb::list names;
  for (int n = 0; n < count; ++n) names.append(name(n));
  return names;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The library behind the package; use flashwok itself.";
  nb::class_<Array>(m, "Array")
      .def_static("from_dlpack", &Array::FromDlpack, "object"_a, "name"_a, "stream"_a = nb::none(),
                  "dtype"_a = "")
      .def_static("from_pointer", &Array::FromPointer, "data"_a, "dtype"_a, "shape"_a, "strides"_a,
                  "read_only"_a, "owner"_a, "name"_a, "cuda"_a = -1);
  m.def("attend", &Attend, "q"_a, "k"_a, "v"_a, "tensors"_a.none(), "o"_a.none(), "lse"_a.none(),
        "scalars"_a, "dropout_seed"_a, "num_threads"_a, "most_threads"_a, "stream"_a.none(),
        "heads_first"_a);
  m.def("forward", &RunForward, "tensors"_a, "options"_a, "outputs"_a, "run"_a, "record"_a = false);
  m.def("backward", &RunBackward, "tensors"_a, "options"_a, "inputs"_a, "gradients"_a, "run"_a,
        "record"_a = false);
  m.def("plan", &PlanDict, "tensors"_a, "options"_a, "which"_a, "run"_a);
  m.def("model_bytes", &ModelBytes, "tensors"_a, "options"_a, "outputs"_a, "run"_a);
  m.def("reference", &Reference, "tensors"_a, "options"_a);
  m.def("merge_states", &Merge, "o_a"_a, "lse_a"_a, "o_b"_a, "lse_b"_a, "o"_a, "lse"_a, "run"_a);
  m.def("quantize_float8", &Quantize, "x"_a, "values"_a, "descale"_a);
  m.def("kernels", &KernelList);
  m.def("cpu_targets", &CpuTargets);
  m.def("cuda_devices", &DeviceList);
  m.def("cuda_absence", &cuda::Absence);
  m.def("jax_handler", &JaxHandler);
  m.attr("version") = Version();
  m.attr("event_fields") = Recorder::kFields;
  m.attr("event_kinds") = Names(static_cast<int>(EventKind::kSkip) + 1,
                                [](int n) { return Name(static_cast<EventKind>(n)); });
  m.attr("event_tensors") =
      Names(static_cast<int>(Role::kDLse) + 1, [](int n) { return Name(static_cast<Role>(n)); });
}

}  // namespace flashwok::python
