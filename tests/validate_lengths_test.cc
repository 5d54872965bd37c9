// Every refusal of lengths, pages, bias, mask, slopes and descales, with its whole message.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/valid_problems.h"

namespace flashwok::test {
namespace {

TEST(Validate, VarlenShapes) {
  const auto refuse = [](const Spoil& spoil, const std::string& message) {
    ExpectRefusal(Varlen(), spoil, message);
  };
  refuse([](Problem& p) { p.cu_seqlens_k = {}; },
         "cu_seqlens_k: is absent, must be given together with cu_seqlens_q");
  refuse([](Problem& p) { p.cu_seqlens_q = {}; },
         "cu_seqlens_q: is absent, must be given together with cu_seqlens_k");
  refuse([](Problem& p) { p.q = Floats(1, 100, 4, 32); },
         "q: rank is 4, must be 3: [total_q, num_heads, head_dim]");
  refuse([](Problem& p) { p.v = Floats(121, 2, 48); },
         "v: total_k (axis 0) is 121, must be 120 as in k");
  refuse([](Problem& p) { p.cu_seqlens_q = Ints(2, 2); },
         "cu_seqlens_q: rank is 2, must be 1: [batch + 1]");
  refuse([](Problem& p) { p.cu_seqlens_q = Ints(0); },
         "cu_seqlens_q: length is 0, must be from 1 to 2147483647");
  refuse([](Problem& p) { p.cu_seqlens_k = Floats(4); },
         "cu_seqlens_k: dtype is float32, must be int32");
  refuse([](Problem& p) { p.cu_seqlens_k = Ints(5); },
         "cu_seqlens_k: batch + 1 (axis 0) is 5, must be 4 as in cu_seqlens_q");
  refuse([](Problem& p) { p.seqused_k = Ints(4); },
         "seqused_k: batch (axis 0) is 4, must be 3 as in cu_seqlens_q");
}

TEST(Validate, VarlenContents) {
  const auto refuse = [](std::vector<std::int32_t> values, const std::string& message) {
    ExpectRefusal(
        Varlen(), [&](Problem& p) { p.cu_seqlens_q = IntData(values); }, message);
  };
  refuse({1, 20, 20, 100}, "cu_seqlens_q: first value is 1, must be 0");
  refuse({0, 20, 19, 100}, "cu_seqlens_q: value 2 is 19, must be from the one before, 20");
  refuse({0, 20, -2147483647, 100},
         "cu_seqlens_q: value 2 is -2147483647, must be from the one before, 20");
  refuse({0, 20, 30, 101}, "cu_seqlens_q: last value is 101, must be up to total_q, 100");
  std::vector<std::int32_t> cu_q = {0, 20, 20, 100};
  std::vector<std::int32_t> cu_k = {0, 50, 60, 110};
  std::vector<std::int32_t> used = {50, 0, 51};
  Problem p = Varlen();
  p.cu_seqlens_q = IntData(cu_q);
  p.cu_seqlens_k = IntData(cu_k);
  ExpectValid(p);
  ExpectRefusal(
      p, [&](Problem& changed) { changed.seqused_k = IntData(used); },
      "seqused_k: value 2 is 51, must be from 0 to 50, the sequence's length");
  used[2] = 50;
  p.seqused_k = IntData(used);
  p.bias = Floats(3, 4, 80, 50);
  ExpectValid(p);
  ExpectRefusal(
      p, [](Problem& changed) { changed.bias = Floats(3, 4, 79, 50); },
      "bias: seqlen_q (axis 2) is 79, must be from 80, the longest sequence");
  ExpectRefusal(
      p, [](Problem& changed) { changed.mask = Shape(DType::kBool, 1, 1, 1, 49); },
      "mask: seqlen_k (axis 3) is 49, must be from 50, the longest sequence");
}

// The contents of one of them alone: planning reads what is given, a call refuses.
TEST(Plan, HalfOfTheVarlenContents) {
  std::vector<std::int32_t> values = {0, 30, 60, 100};
  for (Tensor Problem::*given : {&Problem::cu_seqlens_q, &Problem::cu_seqlens_k}) {
    Problem problem = Varlen();
    problem.*given = IntData(values);
    if (given == &Problem::cu_seqlens_k) values.back() = 120;
    const PlanResult plan = Plan(problem, Pass::kForward);
    EXPECT_TRUE(plan.status.ok()) << plan.status.message();
    ForwardOutput output;
    output.o = Floats(100, 4, 48);
    EXPECT_EQ(Forward(problem, output).code(), StatusCode::kInvalidArgument);
  }
}

TEST(Validate, KeyLengths) {
  std::vector<std::int32_t> values = {70, 71};
  ExpectRefusal(
      Base(), [&](Problem& p) { p.seqused_k = IntData(values); },
      "seqused_k: value 1 is 71, must be from 0 to 70, the sequence's length");
  values = {-1, 3};
  ExpectRefusal(
      Base(), [&](Problem& p) { p.seqused_k = IntData(values); },
      "seqused_k: value 0 is -1, must be from 0 to 70, the sequence's length");
  ExpectRefusal(
      Base(), [](Problem& p) { p.seqused_k = Ints(3); },
      "seqused_k: batch (axis 0) is 3, must be 2 as in q");
  ExpectRefusal(
      Base(), [](Problem& p) { p.seqused_k = Floats(2); },
      "seqused_k: dtype is float32, must be int32");
}

TEST(Validate, Pages) {
  const auto refuse = [](const Spoil& spoil, const std::string& message) {
    ExpectRefusal(Paged(), spoil, message);
  };
  refuse([](Problem& p) { p.seqused_k = {}; },
         "seqused_k: is absent, must be given together with page_table");
  refuse(
      [](Problem& p) {
        p.cu_seqlens_q = Ints(3);
        p.cu_seqlens_k = Ints(3);
      },
      "page_table: is given with cu_seqlens_q and cu_seqlens_k, must be alone");
  refuse([](Problem& p) { p.k = Floats(50, 0, 2, 32); },
         "v: page_size (axis 1) is 16, must be 0 as in k");
  refuse(
      [](Problem& p) {
        p.k = Floats(50, 0, 2, 32);
        p.v = Floats(50, 0, 2, 48);
      },
      "k: page_size is 0, must be from 1 to 2147483647");
  refuse([](Problem& p) { p.v = Floats(51, 16, 2, 48); },
         "v: num_pages (axis 0) is 51, must be 50 as in k");
  refuse([](Problem& p) { p.page_table = Ints(2); },
         "page_table: rank is 1, must be 2: [batch, max_pages]");
  refuse([](Problem& p) { p.page_table = Ints(3, 5); },
         "page_table: batch (axis 0) is 3, must be 2 as in q");
  refuse([](Problem& p) { p.page_table = Ints(2, 1 << 28); },
         "page_table: max_pages is 268435456, must be from 0 to 134217727");
  std::vector<std::int32_t> used = {80, 81};
  refuse([&](Problem& p) { p.seqused_k = IntData(used); },
         "seqused_k: value 1 is 81, must be from 0 to 80, max_pages * page_size");
  Problem p = Paged();
  EXPECT_EQ(Validate(p, Pass::kBackward).message(),
            "page_table: is given, must be absent in the backward pass");
  EXPECT_EQ(Validate(p, Pass::kBackward).code(), StatusCode::kUnsupported);
}

TEST(Validate, Extras) {
  const auto refuse = [](const Spoil& spoil, const std::string& message) {
    ExpectRefusal(Base(), spoil, message);
  };
  refuse([](Problem& p) { p.bias = Floats(4, 65, 70); },
         "bias: rank is 3, must be 4: [batch, num_heads, seqlen_q, seqlen_k]");
  refuse([](Problem& p) { p.bias = Floats(3, 4, 65, 70); },
         "bias: batch (axis 0) is 3, must be 1 or 2 as in q");
  refuse([](Problem& p) { p.bias = Floats(2, 2, 65, 70); },
         "bias: num_heads (axis 1) is 2, must be 1 or 4 as in q");
  refuse([](Problem& p) { p.bias = Floats(2, 4, 64, 70); },
         "bias: seqlen_q (axis 2) is 64, must be 65 as in q");
  refuse([](Problem& p) { p.bias = Floats(2, 4, 65, 1); },
         "bias: seqlen_k (axis 3) is 1, must be 70 as in k");
  refuse([](Problem& p) { p.bias = Shape(DType::kFloat16, 2, 4, 65, 70); },
         "bias: dtype is float16, must be float32");
  refuse([](Problem& p) { p.mask = Floats(2, 4, 65, 70); }, "mask: dtype is float32, must be bool");
  refuse([](Problem& p) { p.alibi_slopes = Floats(2); },
         "alibi_slopes: num_heads (axis 0) is 2, must be 4 as in q");
  refuse([](Problem& p) { p.alibi_slopes = Floats(3, 4); },
         "alibi_slopes: batch (axis 0) is 3, must be 2 as in q");
  refuse([](Problem& p) { p.alibi_slopes = Floats(1, 2, 4); },
         "alibi_slopes: rank is 3, must be 2: [num_heads] or [batch, num_heads]");
  refuse([](Problem& p) { p.alibi_slopes = Ints(4); },
         "alibi_slopes: dtype is int32, must be float32");
  Problem p = Base();
  p.bias = Floats(1, 4, 1, 70);
  p.mask = Shape(DType::kBool, 2, 1, 65, 70);
  p.alibi_slopes = Floats(2, 4);
  ExpectValid(p, Pass::kBackward);
}

TEST(Validate, Float8) {
  const std::string e4m3 = Name(DType::kFloat8E4M3);
  ExpectRefusal(
      Base(), [](Problem& p) { p.k_descale = Floats(2, 2); },
      "k_descale: is given with inputs of float32, must be absent unless they are float8");
  ExpectRefusal(
      Float8(), [](Problem& p) { p.q_descale = Floats(2, 4); },
      "q_descale: num_heads_kv (axis 1) is 4, must be 2 as in k");
  ExpectRefusal(
      Float8(), [](Problem& p) { p.v_descale = Floats(1); },
      "v_descale: rank is 1, must be 2: [batch, num_heads_kv]");
  ExpectRefusal(
      Float8(), [](Problem& p) { p.v.dtype = DType::kFloat8E5M2; },
      std::string("v: dtype is ") + Name(DType::kFloat8E5M2) + ", must be " + e4m3);
  const Status status = Validate(Float8(), Pass::kBackward);
  EXPECT_EQ(status.message(),
            "q: dtype is " + e4m3 + ", must be float32, float16 or bfloat16 in the backward pass");
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace flashwok::test
