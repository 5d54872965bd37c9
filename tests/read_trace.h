// fw-trace/1, read by its own description.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashwok::test {

struct Trace {
  nlohmann::json header;
  std::vector<std::map<std::string, std::int64_t>> events;
};

inline Trace ParseTrace(const std::string& bytes) {
  const auto number = [&](std::size_t offset, std::size_t size) {
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) {
      value = value << 8 | static_cast<unsigned char>(bytes.at(offset + i));
    }
    return size == 4 ? std::int64_t{static_cast<std::int32_t>(value)}
                     : static_cast<std::int64_t>(value);
  };
  Trace trace;
  EXPECT_EQ(bytes.substr(0, 8), "FWTRACE1");
  const auto length = static_cast<std::size_t>(number(8, 8));
  EXPECT_EQ(length % 8, 0u);
  trace.header = nlohmann::json::parse(bytes.substr(16, length));
  const auto size = trace.header["event_bytes"].get<std::size_t>();
  for (std::size_t at = 16 + length; at < bytes.size(); at += size) {
    std::map<std::string, std::int64_t>& event = trace.events.emplace_back();
    for (const nlohmann::json& field : trace.header["fields"]) {
      const std::string type = field["type"].get<std::string>();
      const std::size_t width = type == "i64" ? 8 : type == "i32" ? 4 : 1;
      event[field["name"]] = number(at + field["offset"].get<std::size_t>(), width);
    }
  }
  return trace;
}

}  // namespace flashwok::test
