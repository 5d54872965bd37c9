// Every refusal of options, layouts and shapes, with its whole message.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "tests/valid_problems.h"

namespace flashwok::test {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLimit = 2147483647;

TEST(Validate, Options) {
  const auto refuse = [](const Spoil& spoil, const std::string& message) {
    ExpectRefusal(Base(), spoil, message);
  };
  const double nan = std::nan("");
  refuse([&](Problem& p) { p.softmax_scale = nan; },
         "softmax_scale: is nan, must be finite, up to 8.507059e+37");
  refuse([](Problem& p) { p.softmax_scale = -INFINITY; },
         "softmax_scale: is -inf, must be finite, up to 8.507059e+37");
  refuse([](Problem& p) { p.softmax_scale = 1e39; },
         "softmax_scale: is 1e+39, must be finite, up to 8.507059e+37");
  const std::string cap = ", must be 0 (off) or from 1.1754944e-38 to 8.507059e+37";
  refuse([](Problem& p) { p.softcap = -1.0; }, "softcap: is -1" + cap);
  refuse([&](Problem& p) { p.softcap = nan; }, "softcap: is nan" + cap);
  refuse([](Problem& p) { p.softcap = INFINITY; }, "softcap: is inf" + cap);
  refuse([](Problem& p) { p.softcap = 1e-300; }, "softcap: is 1e-300" + cap);
  refuse([](Problem& p) { p.window_left = -2; },
         "window_left: is -2, must be from 0, or -1 for unlimited");
  refuse([](Problem& p) { p.window_right = -kHuge; },
         "window_right: is -9223372036854775807, must be from 0, or -1 for unlimited");
  refuse([](Problem& p) { p.dropout_p = 1.0; }, "dropout_p: is 1, must be from 0 to below 1");
  refuse([](Problem& p) { p.dropout_p = -0.1; }, "dropout_p: is -0.1, must be from 0 to below 1");
  refuse([&](Problem& p) { p.dropout_p = nan; }, "dropout_p: is nan, must be from 0 to below 1");
  refuse([](Problem& p) { p.num_splits = -1; }, "num_splits: is -1, must be from 0 to 256");
  refuse([](Problem& p) { p.num_splits = 257; }, "num_splits: is 257, must be from 0 to 256");
  refuse(
      [](Problem& p) {
        p.num_splits = 2;
        p.algorithm = Algorithm::kV1;
      },
      std::string("num_splits: is 2, must be 0 or 1 with algorithm ") + Name(Algorithm::kV1));
  refuse([](Problem& p) { p.algorithm = static_cast<Algorithm>(9); },
         "algorithm: is 9, must be from 0 to 4");
  refuse([](Problem& p) { p.causal = static_cast<Causal>(3); },
         "causal: is 3, must be from 0 to 2");
  EXPECT_EQ(Validate(Base(), static_cast<Pass>(2)).message(), "pass: is 2, must be 0 or 1");
}

TEST(Validate, OptionsAtTheirLimits) {
  Problem p = Base();
  p.softmax_scale = -8.5e37;
  p.softcap = 8.5e37;
  p.window_left = kHuge;
  p.window_right = 0;
  p.dropout_p = std::nextafter(1.0, 0.0);
  p.num_splits = 256;
  ExpectValid(p);
  p.softmax_scale = 0.0;
  p.softcap = -0.0;
  p.num_splits = 1;
  p.algorithm = Algorithm::kStandard;
  ExpectValid(p);
}

TEST(Validate, Layouts) {
  const auto refuse = [](const Spoil& spoil, const std::string& message,
                         StatusCode code = StatusCode::kInvalidArgument) {
    ExpectRefusal(Base(), spoil, message, code);
  };
  refuse([](Problem& p) { p.q = {}; }, "q: is absent (rank 0), must be given");
  refuse([](Problem& p) { p.v.rank = 0; }, "v: is absent (rank 0), must be given");
  refuse([](Problem& p) { p.q.rank = 5; }, "q: rank is 5, must be from 1 to 4");
  refuse([](Problem& p) { p.q.rank = -1; }, "q: rank is -1, must be from 1 to 4");
  refuse([](Problem& p) { p.q = Floats(65, 4, 32); },
         "q: rank is 3, must be 4: [batch, seqlen_q, num_heads, head_dim]");
  refuse([](Problem& p) { p.k = Floats(70, 64); },
         "k: rank is 2, must be 4: [batch, seqlen_k, num_heads_kv, head_dim]");
  refuse([](Problem& p) { p.k.shape[1] = -3; }, "k: shape[1] is -3, must be from 0");
  refuse([](Problem& p) { p.v.strides[2] = -48; },
         "v: strides[2] is -48, must be from 0 to 2305843009213693951");
  refuse([](Problem& p) { p.v.strides[0] = kHuge; },
         "v: strides[0] is 9223372036854775807, must be from 0 to 2305843009213693951");
  refuse([](Problem& p) { p.q.strides[3] = 2; }, "q: innermost stride is 2, must be 1");
  refuse([](Problem& p) { p.q.strides[3] = 0; }, "q: innermost stride is 0, must be 1");
  refuse([](Problem& p) { p.q.strides[1] = kHuge / 200; },
         "q: shape [2, 65, 4, 32] passes 2^63 bytes");
  refuse([](Problem& p) { p.q.strides[1] = kHuge / 8; },
         "q: shape [2, 65, 4, 32] passes 2^63 elements");
  refuse(
      [](Problem& p) {
        p.q.shape = {1LL << 40, 1LL << 40, 4, 32};
        p.q.strides = {0, 0, 0, 1};
      },
      "q: shape [1099511627776, 1099511627776, 4, 32] passes 2^63 elements");
  refuse([](Problem& p) { p.q.dtype = static_cast<DType>(99); },
         "q: dtype is 99, must be from 0 to 6");
  refuse([](Problem& p) { p.q.device.type = static_cast<DeviceType>(7); },
         "q: device type is 7, must be from 0 to 1");
  refuse(
      [](Problem& p) {
        p.k.device = {DeviceType::kCuda, 3};
      },
      "k: is on cuda:3, must be on cpu, where the tensors before it are");
  refuse([](Problem& p) { p.q.data = reinterpret_cast<void*>(4099); },
         "q: data address is 3 past a multiple of 4, must be aligned to float32");
}

TEST(Validate, StridesOfInputsAreFree) {
  Problem p = Base();
  p.k.strides = {0, 0, 0, 1};  // broadcast
  p.q.strides = {32, 2 * 4 * 32, 2 * 32, 1};
  ExpectValid(p);
  p = Base();
  p.q = Floats(2, 65, 4, 1);
  p.k = Floats(2, 70, 2, 1);
  p.q.strides[3] = 77;  // of an axis of extent 1
  ExpectValid(p);
}

TEST(Validate, Shapes) {
  const auto refuse = [](const Spoil& spoil, const std::string& message) {
    ExpectRefusal(Base(), spoil, message);
  };
  refuse([](Problem& p) { p.q = Floats(2, 65, 0, 32); },
         "q: num_heads is 0, must be from 1 to 2147483647");
  refuse([](Problem& p) { p.q = Floats(2, 65, 4, 0); }, "q: head_dim is 0, must be from 1 to 256");
  refuse([](Problem& p) { p.q = Floats(2, 65, 4, 257); },
         "q: head_dim is 257, must be from 1 to 256");
  refuse([](Problem& p) { p.q = Floats(2, kLimit + 1, 4, 32); },
         "q: seqlen_q is 2147483648, must be from 0 to 2147483647");
  refuse([](Problem& p) { p.k = Floats(2, 70, 0, 32); },
         "k: num_heads_kv is 0, must be from 1 to 2147483647");
  refuse([](Problem& p) { p.k = Floats(2, 70, 2, 33); },
         "k: head_dim (axis 3) is 33, must be 32 as in q");
  refuse([](Problem& p) { p.k = Floats(3, 70, 2, 32); },
         "k: batch (axis 0) is 3, must be 2 as in q");
  refuse([](Problem& p) { p.v = Floats(3, 70, 2, 48); },
         "v: batch (axis 0) is 3, must be 2 as in q");
  refuse([](Problem& p) { p.v = Floats(2, 71, 2, 48); },
         "v: seqlen_k (axis 1) is 71, must be 70 as in k");
  refuse([](Problem& p) { p.v = Floats(2, 70, 4, 48); },
         "v: num_heads_kv (axis 2) is 4, must be 2 as in k");
  refuse([](Problem& p) { p.v = Floats(2, 70, 2, 300); },
         "v: head_dim_v is 300, must be from 1 to 256");
  refuse(
      [](Problem& p) {
        p.k = Floats(2, 70, 3, 32);
        p.v = Floats(2, 70, 3, 48);
      },
      "k: num_heads_kv is 3, must divide num_heads of q, 4");
  refuse(
      [](Problem& p) {
        p.q.shape[0] = p.k.shape[0] = p.v.shape[0] = 1 << 30;
        p.q.strides[0] = p.k.strides[0] = p.v.strides[0] = 0;
      },
      "q: batch is 1073741824 and num_heads 4, must multiply to at most 2147483647");
  refuse([](Problem& p) { p.q.dtype = DType::kInt32; },
         std::string("q: dtype is int32, must be float32 or float16 or bfloat16 or ") +
             Name(DType::kFloat8E4M3) + " or " + Name(DType::kFloat8E5M2));
  refuse([](Problem& p) { p.k.dtype = DType::kFloat16; }, "k: dtype is float16, must be float32");
  refuse([](Problem& p) { p.v.dtype = DType::kBFloat16; }, "v: dtype is bfloat16, must be float32");
}

TEST(Validate, EmptyShapesAreValid) {
  Problem p = Base();
  p.q = Floats(0, 65, 4, 32);
  p.k = Floats(0, 70, 2, 32);
  p.v = Floats(0, 70, 2, 48);
  ExpectValid(p);
  p = Base();
  p.q = Floats(2, 0, 4, 32);
  ExpectValid(p);
  p = Base();
  p.k = Floats(2, 0, 2, 32);
  p.v = Floats(2, 0, 2, 48);
  ExpectValid(p, Pass::kBackward);
}

}  // namespace
}  // namespace flashwok::test
