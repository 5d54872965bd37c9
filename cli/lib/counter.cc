#include "lib/counter.h"

#include <string>

namespace flashwok::cli {

Json TrafficCounter::ToJson() const {
  Json tensors = Json::object();
  for (int i = 0; i < kNumRoles; ++i) {
    const Role role = static_cast<Role>(i);
    if (read(role) == 0 && written(role) == 0) continue;
    tensors[Name(role)] = {{"read", read(role)}, {"written", written(role)}};
  }
  return {{"read", read()}, {"written", written()}, {"tensors", tensors}};
}

Table TrafficCounter::ToTable() const {
  Table table({"tensor", "read", "written"});
  const auto bytes = [](std::int64_t count) {
    return count == 0 ? std::string("-") : FormatBytes(static_cast<double>(count));
  };
  for (int i = 0; i < kNumRoles; ++i) {
    const Role role = static_cast<Role>(i);
    if (read(role) == 0 && written(role) == 0) continue;
    table.Row({Name(role), bytes(read(role)), bytes(written(role))});
  }
  table.Row({"all", bytes(read()), bytes(written())}, Colour::kBold);
  return table;
}

}  // namespace flashwok::cli
