// The arrays of one call, read by the shortest way that their library has.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "flashwok/tensor.h"
#include "python/src/dlpack_abi.h"

namespace flashwok::python {

namespace nb = nanobind;

// In the order of preference: the table of DLPack's functions that the array's type has; for numpy
// the buffer protocol; else flashwok._arrays.view. The caller keeps the arrays themselves alive,
// and this object what was made of them.
class Arrays {
 public:
  // `stream`: of CUDA, in DLPack's numbers; None: the one that q's library uses now.
  Arrays(nb::handle q, nb::object stream);

  // Absent for None. `name` is what errors call it; a result must be writable.
  Tensor Read(nb::handle array, const char* name, bool result = false);
  const Tensor& q() const { return q_; }
  void* stream() const;

 private:
  bool ReadByTable(nb::handle array, const char* name, const dlpack::Exchange& table, Tensor* to);
  Tensor View(nb::handle array, const char* name, bool result);

  nb::object stream_;
  Tensor q_;
  const dlpack::Exchange* table_ = nullptr;  // of q's library
  std::vector<nb::object> views_;
};

}  // namespace flashwok::python
