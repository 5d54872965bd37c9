#include "lib/session.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "api/plan.h"
#include "common/dtype.h"
#include "common/io_model_backward.h"
#include "lib/command.h"

namespace flashwok::cli {
namespace {

DType OutputType(DType input, const std::string& out_dtype) {
  if (!out_dtype.empty()) return ParseDType("--out-dtype", out_dtype);
  return IsFloat8(input) ? DType::kBFloat16 : input;
}

// Every byte 0xFF: a NaN in each floating dtype.
io::HostTensor NewTensor(DType dtype, const std::vector<std::int64_t>& shape) {
  io::HostTensor tensor = io::HostTensor::Make(dtype, shape);
  const Tensor view = tensor.View();
  auto* bytes = static_cast<unsigned char*>(view.data);
  std::fill_n(bytes, view.num_elements() * ItemSize(dtype), static_cast<unsigned char>(0xFF));
  return tensor;
}

double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<std::pair<std::string, const io::HostTensor*>> Results::Named() const {
  std::vector<std::pair<std::string, const io::HostTensor*>> named = {{"o", &o}, {"lse", &lse}};
  if (gradients.dq.present()) {
    named.insert(named.end(), {{"dq", &dq}, {"dk", &dk}, {"dv", &dv}});
  }
  if (gradients.dbias.present()) named.emplace_back("dbias", &dbias);
  return named;
}

Session::Session(const Workload& workload, Algorithm algorithm, const Execution& execution,
                 Pass pass, const std::string& out_dtype, Device device)
    : workload_(workload),
      problem_(workload.problem),
      execution_(execution),
      pass_(pass),
      device_(device),
      out_dtype_(OutputType(workload.problem.q.dtype, out_dtype)) {
  problem_.algorithm = algorithm;
  const Problem planned = ShapesOn(device, problem_);
  forward_plan_ = Plan(planned, Pass::kForward, execution_);
  if (pass == Pass::kBackward) backward_plan_ = Plan(planned, Pass::kBackward, execution_);
}

std::string Session::refusal() const {
  const PlanResult& refused = forward_plan_.status.ok() ? plan() : forward_plan_;
  for (const Rejection& rejection : refused.rejections) {
    const bool own = rejection.kernel.ends_with(std::string("_") + Name(problem_.algorithm));
    if (refused.status.code() == StatusCode::kUnsupported && own) return rejection.reason;
  }
  return refused.status.message();
}

// A result shaped like `like`, in its axis order, with another last extent if given.
Tensor Session::New(io::HostTensor& slot, const Tensor& like, DType dtype,
                    std::int64_t last) const {
  std::vector<std::int64_t> shape(like.shape.begin(), like.shape.begin() + like.rank);
  if (last != 0) shape.back() = last;
  if (workload_.bhsd()) std::swap(shape[shape.size() - 3], shape[shape.size() - 2]);
  slot = NewTensor(dtype, shape);
  return workload_.bhsd() ? SwapHeads(slot.View()) : slot.View();
}

void Session::Allocate() {
  const Tensor& q = problem_.q;
  const std::int64_t heads = q.shape[q.rank - 2];
  std::vector<std::int64_t> rows = {heads, q.shape[q.rank - 3]};
  if (q.rank == 4) rows.insert(rows.begin(), q.shape[0]);
  Results& r = results_;
  r.output.o = New(r.o, q, out_dtype_, problem_.v.shape[problem_.v.rank - 1]);
  r.lse = NewTensor(DType::kFloat32, rows);
  r.output.lse = r.lse.View();
  if (forward_plan_.algorithm == Algorithm::kV1) {
    r.row_max = NewTensor(DType::kFloat32, rows);
    r.row_sum = NewTensor(DType::kFloat32, rows);
    r.output.row_max = r.row_max.View();
    r.output.row_sum = r.row_sum.View();
  }
  if (pass_ == Pass::kForward) return;
  WidenOutputGradient();
  r.gradients.dq = New(r.dq, q, q.dtype);
  r.gradients.dk = New(r.dk, problem_.k, q.dtype);
  r.gradients.dv = New(r.dv, problem_.v, q.dtype);
  if (problem_.bias.present()) {
    const Tensor& bias = problem_.bias;
    r.dbias = NewTensor(DType::kFloat32, {bias.shape.begin(), bias.shape.begin() + bias.rank});
    r.gradients.dbias = r.dbias.View();
  }
}

// dout has the dtype of O: a narrower one is widened to float32, which is exact.
void Session::WidenOutputGradient() {
  dout_ = workload_.dout;
  if (out_dtype_ != DType::kFloat32 || dout_.dtype == DType::kFloat32) return;
  const Tensor wide = New(wide_dout_, dout_, DType::kFloat32);
  for (std::int64_t i = 0; i < wide.num_elements(); ++i) {  // both in the order of the file
    StoreFromFloat(wide.data, wide.dtype, i, LoadAsFloat(dout_.data, dout_.dtype, i));
  }
  dout_ = wide;
}

// One block for both passes, so that the timed runs allocate nothing.
Execution Session::WithWorkspace(Pass pass, Observer* observer) {
  constexpr std::size_t kAlign = 64;
  const std::size_t bytes = plan(pass).workspace_bytes;
  Execution execution = execution_;
  execution.observer = observer;
  if (bytes == 0) return execution;
  if (workspace_.size() < bytes + kAlign) workspace_.resize(bytes + kAlign);
  std::size_t space = workspace_.size();
  execution.workspace = workspace_.data();
  std::align(kAlign, bytes, execution.workspace, space);
  execution.workspace_bytes = space;
  return execution;
}

double Session::Forward(Observer* observer) {
  workload_.Check(forward_plan_.status);
  if (!results_.output.o.present()) Allocate();
  if (!on_cpu()) return ForwardOnDevice();
  const Execution execution = WithWorkspace(Pass::kForward, observer);
  const auto start = std::chrono::steady_clock::now();
  const Status status = flashwok::Forward(problem_, results_.output, execution);
  const double seconds = Seconds(start);
  workload_.Check(status);
  return seconds;
}

double Session::ForwardOnDevice() {
  if (device_pass_ == nullptr) {
    device_pass_ = std::make_unique<DevicePass>(device_, problem_, results_.output,
                                                forward_plan_.workspace_bytes);
  }
  double seconds = 0.0;
  workload_.Check(device_pass_->Forward(execution_, &seconds));
  return seconds;
}

std::vector<std::byte> Session::Record(const std::vector<int>& blocks, int capacity,
                                       double* seconds) {
  return device_pass_->Record(execution_, blocks, capacity, seconds);
}

void Session::Finish() {
  if (device_pass_ != nullptr) device_pass_->Download();
  device_pass_.reset();
  std::vector<std::byte>().swap(workspace_);
}

BackwardInput Session::Input() const {
  const ForwardOutput& output = results_.output;
  BackwardInput input;
  input.o = output.o;
  input.lse = output.lse;
  input.row_max = output.row_max;
  input.row_sum = output.row_sum;
  input.dout = dout_;
  return input;
}

double Session::Backward(Observer* observer) {
  workload_.Check(backward_plan_.status);
  const Execution execution = WithWorkspace(Pass::kBackward, observer);
  const auto start = std::chrono::steady_clock::now();
  const Status status = flashwok::Backward(problem_, Input(), results_.gradients, execution);
  const double seconds = Seconds(start);
  workload_.Check(status);
  return seconds;
}

double Session::Run(Observer* observer) {
  if (pass_ == Pass::kBackward) Forward();
  return RunPass(observer);
}

double Session::result_bytes() const {
  double bytes = 0.0;
  for (const auto& [name, tensor] : results_.Named()) {
    const Tensor view = tensor->View();
    bytes += static_cast<double>(view.num_elements()) * ItemSize(view.dtype);
  }
  return bytes;
}

std::int64_t Session::model_bytes() const {
  const Choice choice = Choose(ShapesOn(device_, problem_), pass_, execution_);
  const Algorithm algorithm = choice.plan.algorithm;
  const Layout layout(problem_);
  const io_model::Tiles tiles = ModelTiles(choice, problem_);
  const io_model::Traffic traffic =
      pass_ == Pass::kForward
          ? io_model::ForwardTraffic(layout, algorithm, tiles, results_.output)
          : io_model::BackwardTraffic(layout, algorithm, tiles, Input(), results_.gradients);
  return traffic.bytes();
}

Timing Summarize(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const std::size_t middle = seconds.size() / 2;
  const double median =
      seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2.0;
  return {median, seconds.front(), seconds.back(), static_cast<int>(seconds.size())};
}

}  // namespace flashwok::cli
