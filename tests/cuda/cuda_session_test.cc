// The command line's session on a device against the same on the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "common/dtype.h"
#include "cuda/device.h"
#include "lib/measure.h"
#include "tests/guarded_memory.h"

namespace flashwok::test {
namespace {

void ExpectNear(const Tensor& got, const Tensor& want, double tolerance) {
  const std::vector<double> a = Read(got);
  const std::vector<double> b = Read(want);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t n = 0; n < a.size(); ++n) ASSERT_NEAR(a[n], b[n], tolerance) << "element " << n;
}

TEST(CudaSessionTest, EqualsTheCpu) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << cuda::Absence();
  cli::WorkloadOptions options;
  options.shape = "2,300,333,4,2,64";
  options.dtype = "bfloat16";
  options.causal = "bottom_right";
  const cli::Workload workload(options, Pass::kForward);
  cli::Progress progress("", 8.0);
  const auto measure = [&](cli::Session& session, Algorithm algorithm) {
    return cli::Measure(session, algorithm, 3, 1.0, progress, 1.0);
  };
  for (Algorithm algorithm : cli::kAllAlgorithms) {
    SCOPED_TRACE(Name(algorithm));
    cli::Session on_cpu(workload, algorithm, {}, Pass::kForward);
    cli::Session on_device(workload, algorithm, {}, Pass::kForward, "", {DeviceType::kCuda, 0});
    if (!on_device.ok()) {
      EXPECT_EQ(on_device.status().code(), StatusCode::kUnsupported);
      continue;
    }
    (void)measure(on_cpu, algorithm);
    const cli::Measurement measurement = measure(on_device, algorithm);
    EXPECT_EQ(measurement.traffic, nullptr);
    EXPECT_GT(measurement.timing.min, 0.0);
    EXPECT_LT(measurement.timing.median, 1.0);
    ExpectNear(on_device.results().output.o, on_cpu.results().output.o, 0.05);
    ExpectNear(on_device.results().output.lse, on_cpu.results().output.lse, 0.02);
  }
}

}  // namespace
}  // namespace flashwok::test
