// The words that messages, files and the command line use for the enums.
#include "flashwok/attention.h"

namespace flashwok {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat8E4M3: return "float8_e4m3";
    case DType::kFloat8E5M2: return "float8_e5m2";
    case DType::kBool: return "bool";
    case DType::kInt32: return "int32";
  }
  return "unknown";
}

const char* Name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto: return "auto";
    case Algorithm::kStandard: return "standard";
    case Algorithm::kV1: return "v1";
    case Algorithm::kV2: return "v2";
    case Algorithm::kV3: return "v3";
  }
  return "unknown";
}

const char* Name(Causal causal) {
  switch (causal) {
    case Causal::kNone: return "none";
    case Causal::kBottomRight: return "bottom_right";
    case Causal::kTopLeft: return "top_left";
  }
  return "unknown";
}

const char* Name(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

const char* Name(EventKind kind) {
  static constexpr const char* kNames[] = {"load",    "store",    "product", "softmax",
                                           "rescale", "finalize", "skip",    "issue",
                                           "wait",    "turn",     "pack",    "schedule"};
  return kNames[static_cast<int>(kind)];
}

const char* Name(Role role) {
  static constexpr const char* kNames[] = {"Q",  "K", "V",    "O",    "S",     "P",       "lse",
                                           "m",  "l", "dO",   "dQ",   "dK",    "dV",      "dP",
                                           "dS", "D", "bias", "mask", "dbias", "partial", "dlse"};
  return kNames[static_cast<int>(role)];
}

}  // namespace flashwok
