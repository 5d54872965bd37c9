// The command line's session on a device against the same on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "api/plan.h"
#include "common/dtype.h"
#include "cuda/device.h"
#include "cuda/forward_v3_setup.h"
#include "lib/measure.h"
#include "lib/stamps.h"
#include "lib/timeline.h"
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

// Of a build that records them.
TEST(CudaSessionTest, TimeStampsOfADevice) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << cuda::Absence();
  for (const char* shape : {"1,1024,1024,16,16,128", "2,700,900,8,2,64", "1,600,600,4,4,256"}) {
    SCOPED_TRACE(shape);
    cli::WorkloadOptions options;
    options.shape = shape;
    options.dtype = "bfloat16";
    options.causal = "bottom_right";
    const cli::Workload workload(options, Pass::kForward);
    cli::Session session(workload, Algorithm::kV3, {}, Pass::kForward, "", {DeviceType::kCuda, 0});
    const auto kernels = cuda::Registry();
    if (!session.ok() || std::none_of(kernels.begin(), kernels.end(),
                                      [](const cuda::Kernel& k) { return k.time_stamps; })) {
      GTEST_SKIP() << "V3 does not run here, or is built without them";
    }
    session.Run();
    double seconds = 0.0;
    const std::vector<cli::StampedBlock> blocks =
        cli::ReadStamps(session.Record({0, 1, 17}, 1 << 14, &seconds));
    const Layout layout(session.problem());
    const cuda::ForwardV3Config config = cuda::ForwardV3ConfigOf(layout);
    const cli::Timeline timeline =
        cli::MakeTimeline(blocks, session.problem(), session.results().output, config);
    EXPECT_EQ(timeline.lost, 0);
    for (const cli::StampedBlock& block : blocks) {
      EXPECT_GT(block.mhz, 300.0);
      EXPECT_LT(block.mhz, 3000.0);
      EXPECT_LT(static_cast<double>(block.roles[1].back().end) * 1e-9, seconds);
    }
    // Every track one thing after another; what a wait waited for ended by its end.
    std::vector<std::int64_t> ends(64 * blocks.size());
    for (const cli::TraceEvent& event : timeline.events) {
      const Event& e = event.event;
      std::int64_t& end = ends.at(static_cast<std::size_t>(e.track));
      ASSERT_GE(e.t0, end);
      end = e.t0 + e.duration;
      if (event.dependency < 0) continue;
      const Event& on = timeline.events.at(static_cast<std::size_t>(event.dependency)).event;
      EXPECT_LE(on.t0 + on.duration, end) << Name(e.kind) << ' ' << Name(e.role);
    }
  }
}

}  // namespace
}  // namespace flashwok::test
