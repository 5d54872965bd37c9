// From what Python passes to the structs of attention.h.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "flashwok/attention.h"
#include "python/src/array.h"

namespace flashwok::python {

// Each takes a dict whose keys are fields of the struct; another key is a TypeError. Tensors are
// Arrays, which must outlive the struct.
Problem MakeProblem(nb::dict tensors, nb::dict options);
ForwardOutput MakeOutput(nb::dict tensors);
BackwardInput MakeInput(nb::dict tensors);
Gradients MakeGradients(nb::dict tensors);
Execution MakeExecution(nb::dict options);
Pass PassFromName(const std::string& name);
Causal CausalFromName(const std::string& name);
Algorithm AlgorithmFromName(const std::string& name);

// Raises TypeError: the argument has a value of another type.
[[noreturn]] void RefuseValue(const std::string& name, nb::handle value);

// Raises the exception that fits the status: ValueError, NotImplementedError, MemoryError or
// RuntimeError, with the library's sentence. After kCancelled: the exception that is already set.
void Require(const Status& status);

}  // namespace flashwok::python
