#include "lib/machine.h"

#include <fmt/format.h>

#include <ctime>
#include <fstream>
#include <thread>

#include "cpu/parallel_for.h"
#include "cuda/device.h"

namespace flashwok::cli {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d", &utc)};
}

Json MachineJson() { return {{"name", "cpu"}, {"cpu", CpuName()}, {"cores", HardwareThreads()}}; }

Json CudaDevicesJson() {
  Json devices = Json::array();
  const int count = cuda::DeviceCount();
  for (int index = 0; index < count; ++index) {
    const int architecture = cuda::Architecture(index);
    devices.push_back(
        {{"name", NameOf({DeviceType::kCuda, index})},
         {"gpu", cuda::DeviceName(index)},
         {"compute_capability", fmt::format("{}.{}", architecture / 10, architecture % 10)}});
  }
  if (count == 0) devices.push_back({{"name", "cuda"}, {"absent", cuda::Absence()}});
  return devices;
}

std::string NameOf(Device device) {
  return device.type == DeviceType::kCpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::string TitleOf(Device device) {
  if (device.type == DeviceType::kCpu) return "the CPU";
  const std::string gpu = cuda::DeviceName(device.index);
  return gpu.empty() ? NameOf(device) : fmt::format("{}, {}", NameOf(device), gpu);
}

}  // namespace flashwok::cli
