// From the plain structs of c_api.h to those of attention.h, with the checks that C needs: null
// pointers, struct sizes, and enums that the narrower C++ types cannot hold.
#pragma once

#include <cstddef>
#include <string_view>

#include "api/check.h"
#include "flashwok/attention.h"
#include "flashwok/c_api.h"

namespace flashwok {

// Calls a C function at each event.
class CallbackObserver : public Observer {
 public:
  CallbackObserver() = default;
  CallbackObserver(flashwok_observer callback, void* data) : callback_(callback), data_(data) {}
  void OnEvent(const Event& event) override;

 private:
  flashwok_observer callback_ = nullptr;
  void* data_ = nullptr;
};

// For every struct with a struct_size: sets it and the defaults; false, with nothing written, for
// null or a size that no version of the struct has.
template <typename Struct>
bool InitFromC(Struct* to, std::size_t struct_size);

// Each returns whether `from` can be taken; `check` has the message if not.
bool FromC(Check& check, const char* name, const flashwok_tensor* from, Tensor* to);
bool FromC(Check& check, const flashwok_problem* from, Problem* to);
bool FromC(Check& check, const flashwok_forward_output* from, ForwardOutput* to);
bool FromC(Check& check, const flashwok_backward_input* from, BackwardInput* to);
bool FromC(Check& check, const flashwok_gradients* from, Gradients* to);
// `from` may be null. `observer` must live as long as `to`.
bool FromC(Check& check, const flashwok_execution* from, CallbackObserver* observer, Execution* to);
bool FromC(Check& check, flashwok_pass from, Pass* to);

// Whether a result can be written.
bool CheckResult(Check& check, const flashwok_plan_result* result);
bool CheckResult(Check& check, const flashwok_kernel_info* info);
// These take a result that CheckResult has accepted.
void ToC(const PlanResult& from, flashwok_plan_result* to);
void ToC(const KernelInfo& from, flashwok_kernel_info* to);

// As much of `text` as fits, and a NUL. Null or size 0: nothing.
void CopyText(std::string_view text, char* to, std::size_t size);

}  // namespace flashwok
