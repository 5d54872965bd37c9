#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "api/check.h"
#include "api/overlap.h"
#include "api/validate.h"
#include "common/layout.h"

namespace flashwok {
namespace {

bool Varlen(const Problem& p) { return p.cu_seqlens_q.present(); }

// o, dout: q's axes with head_dim_v.
bool CheckRows(Check& check, const Problem& p, const char* name, const Tensor& tensor) {
  const Tensor& q = p.q;
  return check.Rank(name, tensor, q.rank,
                    Varlen(p) ? "[total_q, num_heads, head_dim_v]"
                              : "[batch, seqlen_q, num_heads, head_dim_v]") &&
         (Varlen(p) || check.Axis(name, tensor, 0, "batch", q.shape[0], "q")) &&
         check.Axis(name, tensor, q.rank - 3, Varlen(p) ? "total_q" : "seqlen_q",
                    q.shape[q.rank - 3], "q") &&
         check.Axis(name, tensor, q.rank - 2, "num_heads", q.shape[q.rank - 2], "q") &&
         check.Axis(name, tensor, q.rank - 1, "head_dim_v", p.v.shape[p.v.rank - 1], "v");
}

bool CheckO(Check& check, const Problem& p, const char* name, const Tensor& tensor) {
  if (!CheckRows(check, p, name, tensor)) return false;
  if (IsFloat8(p.q.dtype)) {
    return check.Type(name, tensor, {DType::kBFloat16, DType::kFloat16, DType::kFloat32});
  }
  return check.Type(name, tensor, {p.q.dtype, DType::kFloat32});
}

// One float32 a row: lse and what is shaped like it.
bool CheckRowScalars(Check& check, const Problem& p, const char* name, const Tensor& tensor) {
  const Tensor& q = p.q;
  if (!check.Type(name, tensor, {DType::kFloat32})) return false;
  if (Varlen(p)) {
    return check.Rank(name, tensor, 2, "[num_heads, total_q]") &&
           check.Axis(name, tensor, 0, "num_heads", q.shape[1], "q") &&
           check.Axis(name, tensor, 1, "total_q", q.shape[0], "q");
  }
  return check.Rank(name, tensor, 3, "[batch, num_heads, seqlen_q]") &&
         check.Axis(name, tensor, 0, "batch", q.shape[0], "q") &&
         check.Axis(name, tensor, 1, "num_heads", q.shape[2], "q") &&
         check.Axis(name, tensor, 2, "seqlen_q", q.shape[1], "q");
}

// row_max and row_sum: a pair, and V1's own.
bool CheckV1State(Check& check, const Problem& p, const Tensor& row_max, const Tensor& row_sum) {
  if (!row_max.present() && !row_sum.present()) return true;
  if (row_max.present() != row_sum.present()) {
    return check.Invalid(row_max.present() ? "row_sum" : "row_max",
                         ": is absent, must be given together with ",
                         row_max.present() ? "row_max" : "row_sum");
  }
  if (p.algorithm != Algorithm::kV1) {
    return check.Invalid("row_max: is given with algorithm ", Name(p.algorithm),
                         ", must be absent unless it is ", Name(Algorithm::kV1));
  }
  return CheckRowScalars(check, p, "row_max", row_max) &&
         CheckRowScalars(check, p, "row_sum", row_sum);
}

bool CheckBackwardInput(Check& check, const Problem& p, const BackwardInput& input) {
  for (const auto& [name, tensor] :
       {std::pair{"o", &input.o}, std::pair{"lse", &input.lse}, std::pair{"dout", &input.dout}}) {
    if (!check.Present(name, *tensor)) return false;
  }
  for (const auto& [name, tensor] :
       {std::pair{"o", &input.o}, std::pair{"lse", &input.lse}, std::pair{"dout", &input.dout},
        std::pair{"dlse", &input.dlse}, std::pair{"row_max", &input.row_max},
        std::pair{"row_sum", &input.row_sum}}) {
    if (tensor->rank != 0 && !check.Input(name, *tensor)) return false;
  }
  return CheckO(check, p, "o", input.o) && CheckRowScalars(check, p, "lse", input.lse) &&
         CheckRows(check, p, "dout", input.dout) &&
         check.Type("dout", input.dout, {input.o.dtype}) &&
         (!input.dlse.present() || CheckRowScalars(check, p, "dlse", input.dlse)) &&
         CheckV1State(check, p, input.row_max, input.row_sum);
}

bool CheckGradient(Check& check, const char* name, const Tensor& gradient, const char* input_name,
                   const Tensor& input) {
  return check.Present(name, gradient) && check.Output(name, gradient) &&
         check.SameShape(name, gradient, input_name, input) &&
         check.Type(name, gradient, {input.dtype, DType::kFloat32});
}

bool CheckGradients(Check& check, const Problem& p, const Gradients& gradients) {
  if (!CheckGradient(check, "dq", gradients.dq, "q", p.q) ||
      !CheckGradient(check, "dk", gradients.dk, "k", p.k) ||
      !CheckGradient(check, "dv", gradients.dv, "v", p.v)) {
    return false;
  }
  const Tensor& dbias = gradients.dbias;
  if (!dbias.present()) return true;
  if (!p.bias.present()) return check.Invalid("dbias: is given, must be absent without bias");
  return check.Output("dbias", dbias) && check.Type("dbias", dbias, {DType::kFloat32}) &&
         check.SameShape("dbias", dbias, "bias", p.bias);
}

bool CheckPages(Check& check, const Problem& p) {
  if (!Readable(p.page_table) || !Readable(p.seqused_k)) return true;
  const auto* table = static_cast<const std::int32_t*>(p.page_table.data);
  const auto* used = static_cast<const std::int32_t*>(p.seqused_k.data);
  const std::int64_t num_pages = p.k.shape[0];
  const std::int64_t page_size = p.k.shape[1];
  for (std::int64_t b = 0; b < p.page_table.shape[0]; ++b) {
    const std::int64_t keys = used[b * p.seqused_k.strides[0]];
    for (std::int64_t n = 0; n * page_size < keys; ++n) {
      const std::int64_t page = table[b * p.page_table.strides[0] + n];
      if (page < 0 || page >= num_pages) {
        return check.Invalid("page_table: page ", n, " of sequence ", b, " is ", page,
                             ", must be from 0 to below num_pages, ", num_pages);
      }
    }
  }
  return true;
}

using NamedTensors = std::vector<std::pair<const char*, const Tensor*>>;

NamedTensors Inputs(const Problem& p) {
  return {{"q", &p.q},
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
          {"v_descale", &p.v_descale}};
}
NamedTensors Inputs(const BackwardInput& input) {
  return {{"o", &input.o},       {"lse", &input.lse},         {"dout", &input.dout},
          {"dlse", &input.dlse}, {"row_max", &input.row_max}, {"row_sum", &input.row_sum}};
}
NamedTensors Outputs(const ForwardOutput& output) {
  return {{"o", &output.o},
          {"lse", &output.lse},
          {"row_max", &output.row_max},
          {"row_sum", &output.row_sum}};
}
NamedTensors Outputs(const Gradients& gradients) {
  return {{"dq", &gradients.dq},
          {"dk", &gradients.dk},
          {"dv", &gradients.dv},
          {"dbias", &gradients.dbias}};
}

bool CheckPointers(Check& check, const NamedTensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const auto& named) { return check.Pointer(named.first, *named.second); });
}

bool CheckApart(Check& check, const char* name, const Tensor& output, const char* other_name,
                const Tensor& other) {
  return !Overlap(output, other) ||
         check.Invalid(name, ": overlaps ", other_name, " in memory, must be apart from it");
}

// No output shares memory with an input or with another output.
bool CheckApart(Check& check, const NamedTensors& outputs, const NamedTensors& inputs) {
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    const auto apart = [&, output](const auto& other) {
      return CheckApart(check, output->first, *output->second, other.first, *other.second);
    };
    if (!std::all_of(outputs.begin(), output, apart)) return false;
    if (!std::all_of(inputs.begin(), inputs.end(), apart)) return false;
  }
  return true;
}

// Where a merge reads and writes the same elements at the same time, it may do so in place.
bool SameElements(const Tensor& a, const Tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype) return false;
  for (int axis = 0; axis < a.rank; ++axis) {
    if (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis]) return false;
  }
  return true;
}

}  // namespace

Status ValidateForwardOutput(const Problem& problem, const ForwardOutput& output) {
  Check check(problem.q.device);
  const auto valid = [&] {
    if (!check.Present("o", output.o)) return false;
    for (const auto& [name, tensor] :
         {std::pair{"o", &output.o}, std::pair{"lse", &output.lse},
          std::pair{"row_max", &output.row_max}, std::pair{"row_sum", &output.row_sum}}) {
      if (tensor->rank != 0 && !check.Output(name, *tensor)) return false;
    }
    return CheckO(check, problem, "o", output.o) &&
           (!output.lse.present() || CheckRowScalars(check, problem, "lse", output.lse)) &&
           CheckV1State(check, problem, output.row_max, output.row_sum);
  };
  (void)valid();
  return check.status();
}

Status ValidateBackward(const Problem& problem, const BackwardInput& input,
                        const Gradients& gradients) {
  Check check(problem.q.device);
  (void)(CheckBackwardInput(check, problem, input) && CheckGradients(check, problem, gradients));
  return check.status();
}

Status ValidateExecution(const Execution& execution, Device device) {
  const bool cpu = device.type == DeviceType::kCpu;
  Check check;
  const auto valid = [&] {
    if (!check.Range("num_threads", "is ", execution.num_threads, 0, kMaxThreads) ||
        !check.Range("tile_q", "is ", execution.tile_q, 0, kMaxTileQ) ||
        !check.Range("tile_kv", "is ", execution.tile_kv, 0, kMaxTileKV)) {
      return false;
    }
    if (execution.workspace == nullptr && execution.workspace_bytes != 0) {
      return check.Invalid("workspace_bytes: is ", execution.workspace_bytes,
                           ", must be 0 while workspace is null");
    }
    const auto misaligned = reinterpret_cast<std::uintptr_t>(execution.workspace) % 64;
    if (misaligned != 0) {
      return check.Invalid("workspace: address is ", static_cast<std::int64_t>(misaligned),
                           " past a multiple of 64, must be aligned to 64");
    }
    if (cpu && execution.stream != nullptr) {
      return check.Invalid("stream: is given, must be null on the CPU");
    }
    if (!cpu && execution.observer != nullptr) {
      return check.Unsupported("observer: is given, must be null on a CUDA device");
    }
    if (!cpu && (execution.tile_q != 0 || execution.tile_kv != 0)) {
      return check.Unsupported(execution.tile_q != 0 ? "tile_q" : "tile_kv",
                               ": is given, must be 0 on a CUDA device");
    }
    return true;
  };
  (void)valid();
  return check.status();
}

Status ValidateMerge(const Tensor& o_a, const Tensor& lse_a, const Tensor& o_b, const Tensor& lse_b,
                     const Tensor& o, const Tensor& lse) {
  Check check;
  const auto state = [&](const char* o_name, const Tensor& rows, const char* lse_name,
                         const Tensor& scalars) {
    return check.Present(o_name, rows) && check.Input(o_name, rows) &&
           check.Rank(o_name, rows, 4, "[batch, seqlen_q, num_heads, head_dim_v]") &&
           check.Type(o_name, rows, {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) &&
           check.SameShape(o_name, rows, "o_a", o_a) && check.Present(lse_name, scalars) &&
           check.Input(lse_name, scalars) &&
           check.Rank(lse_name, scalars, 3, "[batch, num_heads, seqlen_q]") &&
           check.Type(lse_name, scalars, {DType::kFloat32}) &&
           check.Axis(lse_name, scalars, 0, "batch", o_a.shape[0], "o_a") &&
           check.Axis(lse_name, scalars, 1, "num_heads", o_a.shape[2], "o_a") &&
           check.Axis(lse_name, scalars, 2, "seqlen_q", o_a.shape[1], "o_a") &&
           check.Pointer(o_name, rows) && check.Pointer(lse_name, scalars);
  };
  const auto in_place = [&](const char* name, const Tensor& output, const char* input_name,
                            const Tensor& input) {
    return SameElements(output, input) || CheckApart(check, name, output, input_name, input);
  };
  (void)(state("o_a", o_a, "lse_a", lse_a) && state("o_b", o_b, "lse_b", lse_b) &&
         state("o", o, "lse", lse) && check.Output("o", o) && check.Output("lse", lse) &&
         in_place("o", o, "o_a", o_a) && in_place("o", o, "o_b", o_b) &&
         in_place("lse", lse, "lse_a", lse_a) && in_place("lse", lse, "lse_b", lse_b) &&
         CheckApart(check, {{"o", &o}}, {{"lse_a", &lse_a}, {"lse_b", &lse_b}}) &&
         CheckApart(check, {{"lse", &lse}}, {{"o_a", &o_a}, {"o_b", &o_b}, {"o", &o}}));
  return check.status();
}

Status ValidateQuantize(const Tensor& x, const Tensor& values, const Tensor& descale) {
  Check check;
  const bool fits =
      check.Present("x", x) && check.Input("x", x) &&
      check.Rank("x", x, 4, "[batch, seqlen, num_heads, head_dim]") &&
      check.Type("x", x, {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) &&
      check.Present("values", values) && check.Output("values", values) &&
      check.SameShape("values", values, "x", x) &&
      check.Type("values", values, {DType::kFloat8E4M3, DType::kFloat8E5M2}) &&
      check.Present("descale", descale) && check.Output("descale", descale) &&
      check.Rank("descale", descale, 2, "[batch, num_heads_kv]") &&
      check.Type("descale", descale, {DType::kFloat32}) &&
      check.Axis("descale", descale, 0, "batch", x.shape[0], "x") &&
      check.Range("descale", "num_heads_kv is ", descale.shape[1], 1, kMaxLength);
  if (!fits) return check.status();
  (void)((x.shape[2] % descale.shape[1] == 0 ||
          check.Invalid("descale: num_heads_kv is ", descale.shape[1],
                        ", must divide num_heads of x, ", x.shape[2])) &&
         (x.device.type == DeviceType::kCpu ||
          check.Unsupported("x: is on ", x.device, ", must be on the CPU")) &&
         check.Pointer("x", x) && check.Pointer("values", values) &&
         check.Pointer("descale", descale) &&
         CheckApart(check, {{"values", &values}}, {{"x", &x}, {"descale", &descale}}) &&
         CheckApart(check, {{"descale", &descale}}, {{"x", &x}}));
  return check.status();
}

Status ValidatePointers(const Problem& p) {
  Check check;
  (void)(CheckPointers(check, Inputs(p)) && CheckPages(check, p));
  return check.status();
}

Status ValidatePointers(const ForwardOutput& output) {
  Check check;
  (void)CheckPointers(check, Outputs(output));
  return check.status();
}

Status ValidatePointers(const BackwardInput& input, const Gradients& gradients) {
  Check check;
  (void)(CheckPointers(check, Inputs(input)) && CheckPointers(check, Outputs(gradients)));
  return check.status();
}

Status ValidateOverlap(const Problem& problem, const ForwardOutput& output, const Tensor& dout) {
  Check check;
  (void)(CheckApart(check, Outputs(output), Inputs(problem)) &&
         CheckApart(check, Outputs(output), {{"dout", &dout}}));
  return check.status();
}

Status ValidateOverlap(const Problem& problem, const BackwardInput& input,
                       const Gradients& gradients) {
  Check check;
  (void)(CheckApart(check, Outputs(gradients), Inputs(problem)) &&
         CheckApart(check, Outputs(gradients), Inputs(input)));
  return check.status();
}

}  // namespace flashwok
