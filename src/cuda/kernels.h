// The CUDA kernels as the registry sees them: host code around the instances.
#pragma once

#include <string>

#include "cuda/registry.h"

namespace flashwok::cuda {

Launch PlanForwardStandard(const Layout&);
std::size_t ForwardStandardBytes(const Layout&, const Launch&);
std::string ForwardStandardObjection(const Layout&);
Status ForwardStandard(const Problem&, const ForwardOutput&, const Launch&);

Launch PlanForwardV1(const Layout&);
std::size_t ForwardV1Bytes(const Layout&, const Launch&);
std::string ForwardV1Objection(const Layout&);
Status ForwardV1(const Problem&, const ForwardOutput&, const Launch&);

Launch PlanForwardV2(const Layout&);
std::size_t ForwardV2Bytes(const Layout&, const Launch&);
std::string ForwardV2Objection(const Layout&);
Status ForwardV2(const Problem&, const ForwardOutput&, const Launch&);

Launch PlanForwardV3(const Layout&);
std::size_t ForwardV3Bytes(const Layout&, const Launch&);
std::string ForwardV3Objection(const Layout&);
Status ForwardV3(const Problem&, const ForwardOutput&, const Launch&);

}  // namespace flashwok::cuda
