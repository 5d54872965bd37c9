#include "lib/machine.h"

#include <ctime>
#include <fstream>
#include <thread>

#include "cpu/parallel_for.h"

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

}  // namespace flashwok::cli
