// Every refusal of outputs, gradients, executions and null data, with its whole message.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/valid_problems.h"

namespace flashwok::test {
namespace {

struct Call {
  Problem problem;
  ForwardOutput output;
  BackwardInput input;
  Gradients gradients;
};

Call BaseCall(DType dtype = DType::kFloat16) {
  Call c;
  c.problem.q = Shape(dtype, 2, 65, 4, 32);
  c.problem.k = Shape(dtype, 2, 70, 2, 32);
  c.problem.v = Shape(dtype, 2, 70, 2, 48);
  c.problem.bias = Floats(1, 4, 65, 70);
  c.problem.algorithm = Algorithm::kV1;
  c.output.o = Shape(dtype, 2, 65, 4, 48);
  c.output.lse = c.output.row_max = c.output.row_sum = Floats(2, 4, 65);
  c.input.o = c.input.dout = c.output.o;
  c.input.lse = c.input.dlse = c.input.row_max = c.input.row_sum = c.output.lse;
  c.gradients.dq = c.problem.q;
  c.gradients.dk = c.problem.k;
  c.gradients.dv = c.problem.v;
  c.gradients.dbias = c.problem.bias;
  return c;
}

Call VarlenCall() {
  Call c = BaseCall();
  c.problem.q = Shape(DType::kFloat16, 100, 4, 32);
  c.problem.k = Shape(DType::kFloat16, 120, 2, 32);
  c.problem.v = Shape(DType::kFloat16, 120, 2, 48);
  c.problem.cu_seqlens_q = c.problem.cu_seqlens_k = Shape(DType::kInt32, 4);
  c.problem.bias = {};
  c.output.o = Shape(DType::kFloat16, 100, 4, 48);
  c.output.lse = c.output.row_max = c.output.row_sum = Floats(4, 100);
  return c;
}

using Spoil = std::function<void(Call&)>;

void ExpectForward(Call c, const Spoil& spoil, const std::string& message) {
  ASSERT_EQ(Validate(c.problem, Pass::kForward).message(), "");
  ASSERT_EQ(ValidateForwardOutput(c.problem, c.output).message(), "") << "before: " << message;
  spoil(c);
  EXPECT_EQ(ValidateForwardOutput(c.problem, c.output).message(), message);
}

void ExpectBackward(const Spoil& spoil, const std::string& message) {
  Call c = BaseCall();
  ASSERT_EQ(Validate(c.problem, Pass::kBackward).message(), "");
  ASSERT_EQ(ValidateBackward(c.problem, c.input, c.gradients).message(), "");
  spoil(c);
  EXPECT_EQ(ValidateBackward(c.problem, c.input, c.gradients).message(), message);
}

TEST(ValidateForwardOutput, Refusals) {
  const auto refuse = [](const Spoil& spoil, const std::string& message) {
    ExpectForward(BaseCall(), spoil, message);
  };
  refuse([](Call& c) { c.output.o = {}; }, "o: is absent (rank 0), must be given");
  refuse([](Call& c) { c.output.o = Shape(DType::kFloat16, 2, 65, 4, 32); },
         "o: head_dim_v (axis 3) is 32, must be 48 as in v");
  refuse([](Call& c) { c.output.o = Shape(DType::kFloat16, 3, 65, 4, 48); },
         "o: batch (axis 0) is 3, must be 2 as in q");
  refuse([](Call& c) { c.output.o = Shape(DType::kFloat16, 2, 64, 4, 48); },
         "o: seqlen_q (axis 1) is 64, must be 65 as in q");
  refuse([](Call& c) { c.output.o = Shape(DType::kFloat16, 2, 65, 2, 48); },
         "o: num_heads (axis 2) is 2, must be 4 as in q");
  refuse([](Call& c) { c.output.o.dtype = DType::kBFloat16; },
         "o: dtype is bfloat16, must be float16 or float32");
  refuse([](Call& c) { c.output.o.strides[0] = 0; },
         "o: strides[0] is 0 over 2 elements, must not be 0 in an output");
  refuse([](Call& c) { c.output.o.strides[1] = 190; },
         "o: strides[1] is 190, must be from 192 so that no two elements of this output share an "
         "address");
  refuse([](Call& c) { c.output.lse.strides[1] = 0; },
         "lse: strides[1] is 0 over 4 elements, must not be 0 in an output");
  refuse([](Call& c) { c.output.lse = Floats(2, 65, 4); },
         "lse: num_heads (axis 1) is 65, must be 4 as in q");
  refuse([](Call& c) { c.output.lse.dtype = DType::kFloat16; },
         "lse: dtype is float16, must be float32");
  refuse([](Call& c) { c.output.row_sum = {}; },
         "row_sum: is absent, must be given together with row_max");
  refuse([](Call& c) { c.output.row_max = {}; },
         "row_max: is absent, must be given together with row_sum");
  refuse([](Call& c) { c.problem.algorithm = Algorithm::kV2; },
         std::string("row_max: is given with algorithm ") + Name(Algorithm::kV2) +
             ", must be absent unless it is " + Name(Algorithm::kV1));
  refuse([](Call& c) { c.output.row_sum = Floats(2, 4); },
         "row_sum: rank is 2, must be 3: [batch, num_heads, seqlen_q]");
}

TEST(ValidateForwardOutput, Varlen) {
  ExpectForward(
      VarlenCall(), [](Call& c) { c.output.o = Shape(DType::kFloat16, 99, 4, 48); },
      "o: total_q (axis 0) is 99, must be 100 as in q");
  ExpectForward(
      VarlenCall(), [](Call& c) { c.output.lse = Floats(100, 4); },
      "lse: num_heads (axis 0) is 100, must be 4 as in q");
}

TEST(ValidateForwardOutput, Dtypes) {
  Call c = BaseCall(DType::kFloat8E4M3);
  c.output.o.dtype = DType::kBFloat16;
  EXPECT_TRUE(ValidateForwardOutput(c.problem, c.output).ok());
  c.output.o.dtype = DType::kFloat8E4M3;
  EXPECT_EQ(ValidateForwardOutput(c.problem, c.output).message(),
            std::string("o: dtype is ") + Name(DType::kFloat8E4M3) +
                ", must be bfloat16 or float16 or float32");
  c = BaseCall(DType::kFloat32);
  c.output.o.dtype = DType::kBFloat16;
  EXPECT_EQ(ValidateForwardOutput(c.problem, c.output).message(),
            "o: dtype is bfloat16, must be float32");
}

TEST(ValidateForwardOutput, InterleavedStridesAreValid) {
  Call c = BaseCall();
  c.output.o.strides = {48, 4 * 2 * 48, 2 * 48, 1};  // batch inside heads
  c.output.lse = {};
  EXPECT_EQ(ValidateForwardOutput(c.problem, c.output).message(), "");
}

TEST(ValidateBackward, Refusals) {
  ExpectBackward([](Call& c) { c.input.lse = {}; }, "lse: is absent (rank 0), must be given");
  ExpectBackward([](Call& c) { c.input.dout = {}; }, "dout: is absent (rank 0), must be given");
  ExpectBackward([](Call& c) { c.input.dout.dtype = DType::kFloat32; },
                 "dout: dtype is float32, must be float16");
  ExpectBackward([](Call& c) { c.input.dout = Shape(DType::kFloat16, 2, 65, 4, 47); },
                 "dout: head_dim_v (axis 3) is 47, must be 48 as in v");
  ExpectBackward([](Call& c) { c.input.dlse = Floats(2, 4, 64); },
                 "dlse: seqlen_q (axis 2) is 64, must be 65 as in q");
  ExpectBackward([](Call& c) { c.input.row_max = {}; },
                 "row_max: is absent, must be given together with row_sum");
  ExpectBackward([](Call& c) { c.gradients.dk = {}; }, "dk: is absent (rank 0), must be given");
  ExpectBackward([](Call& c) { c.gradients.dk = c.problem.v; },
                 "dk: shape is [2, 70, 2, 48], must be [2, 70, 2, 32] as k");
  ExpectBackward([](Call& c) { c.gradients.dq.dtype = DType::kBFloat16; },
                 "dq: dtype is bfloat16, must be float16 or float32");
  ExpectBackward([](Call& c) { c.gradients.dv.strides[0] = 0; },
                 "dv: strides[0] is 0 over 2 elements, must not be 0 in an output");
  ExpectBackward([](Call& c) { c.problem.bias = {}; },
                 "dbias: is given, must be absent without bias");
  ExpectBackward([](Call& c) { c.gradients.dbias.dtype = DType::kFloat16; },
                 "dbias: dtype is float16, must be float32");
  ExpectBackward([](Call& c) { c.gradients.dbias = Floats(2, 4, 65, 70); },
                 "dbias: shape is [2, 4, 65, 70], must be [1, 4, 65, 70] as bias");
}

TEST(ValidateExecution, Refusals) {
  const auto refuse = [](const std::function<void(Execution&)>& spoil, const std::string& message) {
    Execution execution;
    ASSERT_TRUE(ValidateExecution(execution, Device{}).ok());
    spoil(execution);
    EXPECT_EQ(ValidateExecution(execution, Device{}).message(), message);
  };
  refuse([](Execution& e) { e.num_threads = -1; }, "num_threads: is -1, must be from 0 to 4096");
  refuse([](Execution& e) { e.tile_q = 1025; }, "tile_q: is 1025, must be from 0 to 1024");
  refuse([](Execution& e) { e.tile_kv = -8; }, "tile_kv: is -8, must be from 0 to 256");
  refuse([](Execution& e) { e.workspace_bytes = 100; },
         "workspace_bytes: is 100, must be 0 while workspace is null");
  refuse([](Execution& e) { e.workspace = reinterpret_cast<void*>(4096 + 16); },
         "workspace: address is 16 past a multiple of 64, must be aligned to 64");
  refuse([](Execution& e) { e.stream = reinterpret_cast<void*>(64); },
         "stream: is given, must be null on the CPU");
}

TEST(ValidatePointers, NullData) {
  Call c = BaseCall();
  EXPECT_EQ(ValidatePointers(c.problem).message(), "q: data is null, must point to 16640 elements");
  EXPECT_EQ(ValidatePointers(c.output).message(), "o: data is null, must point to 24960 elements");
  EXPECT_EQ(ValidatePointers(c.input, c.gradients).message(),
            "o: data is null, must point to 24960 elements");
  Problem empty;
  empty.q = empty.k = empty.v = Floats(0, 5, 1, 8);
  EXPECT_TRUE(ValidatePointers(empty).ok());
}

TEST(ValidatePointers, Pages) {
  std::vector<float> data(64);
  std::vector<std::int32_t> used = {5};
  std::vector<std::int32_t> table = {0, 3, -1};
  Problem p;
  p.q = Tensor::Contiguous(data.data(), DType::kFloat32, {1, 1, 1, 4});
  p.k = p.v = Tensor::Contiguous(data.data(), DType::kFloat32, {3, 4, 1, 4});
  p.seqused_k = Tensor::Contiguous(used.data(), DType::kInt32, {1});
  p.page_table = Tensor::Contiguous(table.data(), DType::kInt32, {1, 3});
  ASSERT_TRUE(Validate(p, Pass::kForward).ok());
  EXPECT_EQ(ValidatePointers(p).message(),
            "page_table: page 1 of sequence 0 is 3, must be from 0 to below num_pages, 3");
  used[0] = 4;  // page 1 is not in use any more
  EXPECT_TRUE(ValidatePointers(p).ok());
}

// Tensors beside each other in one block of memory that nothing reads.
class Memory {
 public:
  void Place(Tensor& tensor) {
    tensor.data = data_.data() + used_;
    used_ += static_cast<std::size_t>(tensor.num_elements());
    ASSERT_LE(used_, data_.size());
  }

 private:
  std::vector<float> data_ = std::vector<float>(std::size_t{1} << 18);
  std::size_t used_ = 0;
};

Call PlacedCall(Memory& memory) {
  Call c = BaseCall();
  BackwardInput& in = c.input;
  for (Tensor* tensor : {&c.problem.q, &c.problem.k, &c.problem.v, &c.problem.bias, &in.o, &in.lse,
                         &in.dout, &in.dlse, &in.row_max, &in.row_sum, &c.gradients.dq,
                         &c.gradients.dk, &c.gradients.dv, &c.gradients.dbias}) {
    memory.Place(*tensor);
  }
  c.output = {in.o, in.lse, in.row_max, in.row_sum};
  return c;
}

TEST(ValidateOverlap, Refusals) {
  const auto refuse = [](const Spoil& spoil, const std::string& forward,
                         const std::string& backward) {
    Memory memory;
    Call c = PlacedCall(memory);
    ASSERT_EQ(ValidateOverlap(c.problem, c.output, c.input.dout).message(), "");
    ASSERT_EQ(ValidateOverlap(c.problem, c.input, c.gradients).message(), "");
    spoil(c);
    const auto message = [](const std::string& pair) {
      return pair.empty() ? "" : pair + " in memory, must be apart from it";
    };
    EXPECT_EQ(ValidateOverlap(c.problem, c.output, c.input.dout).message(), message(forward));
    EXPECT_EQ(ValidateOverlap(c.problem, c.input, c.gradients).message(), message(backward));
  };
  refuse([](Call& c) { c.output.o.data = c.problem.q.data; }, "o: overlaps q", "");
  refuse([](Call& c) { c.output.lse.data = c.output.o.data; }, "lse: overlaps o", "");
  refuse([](Call& c) { c.output.row_sum.data = c.output.row_max.data; },
         "row_sum: overlaps row_max", "");
  refuse([](Call& c) { c.output.o.data = c.input.dout.data; }, "o: overlaps dout", "");
  refuse([](Call& c) { c.gradients.dq.data = c.problem.q.data; }, "", "dq: overlaps q");
  refuse([](Call& c) { c.gradients.dv.data = c.gradients.dk.data; }, "", "dv: overlaps dk");
  refuse([](Call& c) { c.gradients.dbias.data = c.problem.bias.data; }, "", "dbias: overlaps bias");
  refuse([](Call& c) { c.gradients.dq.data = c.input.dout.data; }, "", "dq: overlaps dout");
}

TEST(ValidateOverlap, TheCallsRefuse) {
  std::vector<float> data(4096);
  float* next = data.data();
  const auto rows = [&](float* at) {
    return Tensor::Contiguous(at, DType::kFloat32, {1, 4, 2, 8});
  };
  const auto take = [&] { return std::exchange(next, next + 64); };
  Problem p;
  p.q = rows(take());
  p.k = rows(take());
  p.v = rows(take());
  ForwardOutput output{
      rows(take()), Tensor::Contiguous(take(), DType::kFloat32, {1, 2, 4}), {}, {}};
  BackwardInput input;
  input.o = output.o;
  input.lse = output.lse;
  input.dout = rows(take());
  Gradients gradients{rows(take()), rows(take()), rows(take()), {}};
  ASSERT_TRUE(ForwardBackward(p, output, input.dout, gradients).ok());
  ForwardOutput over_q = output;
  over_q.o = p.q;
  EXPECT_EQ(Forward(p, over_q).code(), StatusCode::kInvalidArgument);
  ForwardOutput over_dout = output;
  over_dout.o = input.dout;
  EXPECT_EQ(ForwardBackward(p, over_dout, input.dout, gradients).code(),
            StatusCode::kInvalidArgument);
  gradients.dv = gradients.dk;
  EXPECT_EQ(Backward(p, input, gradients).code(), StatusCode::kInvalidArgument);
}

TEST(ValidateMerge, Refusals) {
  std::vector<float> data(64);
  const Tensor o = Tensor::Contiguous(data.data(), DType::kFloat32, {1, 3, 2, 4});
  const Tensor lse = Tensor::Contiguous(data.data() + 32, DType::kFloat32, {1, 2, 3});
  EXPECT_EQ(ValidateMerge(o, lse, o, lse, o, lse).message(), "");
  Tensor other = o;
  other.shape[1] = 2;
  EXPECT_EQ(ValidateMerge(o, lse, other, lse, o, lse).message(),
            "o_b: shape is [1, 2, 2, 4], must be [1, 3, 2, 4] as o_a");
  other = lse;
  other.dtype = DType::kInt32;
  EXPECT_EQ(ValidateMerge(o, lse, o, lse, o, other).message(),
            "lse: dtype is int32, must be float32");
  other = o;
  other.strides[1] = 0;
  other.data = data.data() + 48;
  EXPECT_EQ(ValidateMerge(other, lse, o, lse, o, lse).message(), "");
  EXPECT_EQ(ValidateMerge(o, lse, o, lse, other, lse).message(),
            "o: strides[1] is 0 over 3 elements, must not be 0 in an output");
  other = o;
  other.data = nullptr;
  EXPECT_EQ(ValidateMerge(o, lse, other, lse, o, lse).message(),
            "o_b: data is null, must point to 24 elements");
}

TEST(ValidateMerge, DevicesThatDiffer) {
  std::vector<float> data(64);
  Tensor o = Tensor::Contiguous(data.data(), DType::kFloat32, {1, 3, 2, 4});
  Tensor lse = Tensor::Contiguous(data.data() + 32, DType::kFloat32, {1, 2, 3});
  const Tensor on_cpu[] = {o, lse};
  o.device = lse.device = {DeviceType::kCuda, 1};
  EXPECT_EQ(ValidateMerge(o, lse, o, lse, o, lse).message(), "");
  const char* names[] = {"o_a", "lse_a", "o_b", "lse_b", "o", "lse"};
  for (std::size_t n = 1; n < 6; ++n) {
    Tensor t[] = {o, lse, o, lse, o, lse};
    t[n] = on_cpu[n % 2];
    const std::string message = ValidateMerge(t[0], t[1], t[2], t[3], t[4], t[5]).message();
    EXPECT_TRUE(message.starts_with(names[n] + std::string(": is on cpu"))) << message;
    t[n].device = {DeviceType::kCuda, 0};
    EXPECT_NE(ValidateMerge(t[0], t[1], t[2], t[3], t[4], t[5]).message().find("cuda:0"),
              std::string::npos);
  }
  // None of the devices that this machine has.
  o.device = lse.device = {DeviceType::kCuda, 1000};
  const Status status = MergeStates(o, lse, o, lse, o, lse);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_TRUE(status.message().starts_with("o_a: is on cuda:1000: ")) << status.message();
}

TEST(ValidateMerge, InPlaceOrApart) {
  std::vector<float> data(128);
  const auto rows = [&](int at) {
    return Tensor::Contiguous(data.data() + at, DType::kFloat32, {1, 3, 2, 4});
  };
  const auto scalars = [&](int at) {
    return Tensor::Contiguous(data.data() + at, DType::kFloat32, {1, 2, 3});
  };
  const auto message = [&](int o, int lse) {
    return ValidateMerge(rows(0), scalars(24), rows(30), scalars(54), rows(o), scalars(lse))
        .message();
  };
  EXPECT_EQ(message(0, 24), "");
  EXPECT_EQ(message(30, 54), "");
  EXPECT_EQ(message(60, 84), "");
  EXPECT_EQ(message(60, 83), "lse: overlaps o in memory, must be apart from it");
  EXPECT_EQ(message(61, 54), "");
  EXPECT_EQ(message(4, 90), "o: overlaps o_a in memory, must be apart from it");
  EXPECT_EQ(message(53, 90), "o: overlaps o_b in memory, must be apart from it");
  EXPECT_EQ(message(60, 25), "lse: overlaps lse_a in memory, must be apart from it");
}

}  // namespace
}  // namespace flashwok::test
