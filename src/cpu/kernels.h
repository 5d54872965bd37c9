// The CPU kernels as the registry sees them. Each takes a validated problem and a planned launch,
// and dispatches to the best instruction set of the machine.
#pragma once

#include "cpu/worktop.h"
#include "flashwok/attention.h"

namespace flashwok::cpu {

void ForwardStandard(const Problem&, const ForwardOutput&, const Launch&);
void ForwardV1(const Problem&, const ForwardOutput&, const Launch&);
void ForwardV2(const Problem&, const ForwardOutput&, const Launch&);
void ForwardV3(const Problem&, const ForwardOutput&, const Launch&);
// V3 with bfloat16 products; only where the machine has the instructions.
void ForwardV3Amx(const Problem&, const ForwardOutput&, const Launch&);
void ForwardV3Avx512Bf16(const Problem&, const ForwardOutput&, const Launch&);
void BackwardV3Amx(const Problem&, const BackwardInput&, const Gradients&, const Launch&);
void BackwardV3Avx512Bf16(const Problem&, const BackwardInput&, const Gradients&, const Launch&);
void BackwardStandard(const Problem&, const BackwardInput&, const Gradients&, const Launch&);
void BackwardV1(const Problem&, const BackwardInput&, const Gradients&, const Launch&);
void BackwardV2(const Problem&, const BackwardInput&, const Gradients&, const Launch&);
void BackwardV3(const Problem&, const BackwardInput&, const Gradients&, const Launch&);

// Bytes of scratch that a kernel takes from Launch::workspace (which may be null here).
std::size_t ForwardStandardBytes(const Problem&, const Launch&);
std::size_t ForwardV1Bytes(const Problem&, const Launch&);
std::size_t ForwardV2Bytes(const Problem&, const Launch&);
std::size_t ForwardV3Bytes(const Problem&, const Launch&);
std::size_t ForwardV3Bf16Bytes(const Problem&, const Launch&);
std::size_t BackwardV3Bf16Bytes(const Problem&, const Launch&);
std::size_t BackwardStandardBytes(const Problem&, const Launch&);
std::size_t BackwardV1Bytes(const Problem&, const Launch&);
std::size_t BackwardV2Bytes(const Problem&, const Launch&);
std::size_t BackwardV3Bytes(const Problem&, const Launch&);

}  // namespace flashwok::cpu
