#include "lib/command.h"

namespace flashwok::cli {

void Require(const Status& status, const std::string& prefix) {
  if (status.ok()) return;
  const std::string line = prefix.empty() ? status.message() : prefix + ": " + status.message();
  if (status.code() == StatusCode::kInternal) throw Failure(line);
  throw BadInput(line);
}

}  // namespace flashwok::cli
