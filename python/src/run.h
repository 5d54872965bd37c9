// A call of the library, with the lock of Python given away.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "flashwok/attention.h"
#include "python/src/arguments.h"
#include "python/src/observers.h"

namespace flashwok::python {

// CUDA's state does not survive a fork: a child of a process that has used it is told so.
void RequireSameProcess(const Tensor& tensor);

template <typename Call>
void Run(const Problem& problem, Execution execution, Recorder* recorder, const Call& call) {
  RequireSameProcess(problem.q);
  Interrupt interrupt;
  interrupt.Watch(&execution);
  execution.observer = recorder;
  Status status;
  {
    nb::gil_scoped_release release;
    status = call(execution);
  }
  Require(status);
  if (recorder != nullptr && recorder->full()) {
    throw nb::value_error(("the run has more than " + std::to_string(Recorder::kMaxEvents) +
                           " events, must have fewer: take a smaller problem or larger tiles")
                              .c_str());
  }
}

}  // namespace flashwok::python
