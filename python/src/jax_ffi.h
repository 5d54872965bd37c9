// The handler through which JAX calls the library (jax.ffi).
#pragma once

#include <nanobind/nanobind.h>

namespace flashwok::python {

// The capsule that jax.ffi.register_ffi_target takes; `platform` is "cpu" or "cuda".
//
// Attributes of a call, beside the scalar options of a problem: `pass`; `arguments` and `results`,
// the names of the buffers with a space between two; `causal` and `algorithm`.
nanobind::capsule JaxHandler(const char* platform);

}  // namespace flashwok::python
