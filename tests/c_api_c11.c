// The C interface as C11 sees it.
#include "tests/c_api_c11.h"

#include "flashwok/c_api.h"

const size_t kC11Layout[kC11Structs][2] = {
    {sizeof(flashwok_tensor), offsetof(flashwok_tensor, device_index)},
    {sizeof(flashwok_problem), offsetof(flashwok_problem, dropout_offset)},
    {sizeof(flashwok_forward_output), offsetof(flashwok_forward_output, row_sum)},
    {sizeof(flashwok_backward_input), offsetof(flashwok_backward_input, row_sum)},
    {sizeof(flashwok_gradients), offsetof(flashwok_gradients, dbias)},
    {sizeof(flashwok_event), offsetof(flashwok_event, k_tile)},
    {sizeof(flashwok_execution), offsetof(flashwok_execution, stream)},
    {sizeof(flashwok_rejection), offsetof(flashwok_rejection, reason)},
    {sizeof(flashwok_plan_result), offsetof(flashwok_plan_result, workspace_bytes)},
    {sizeof(flashwok_kernel_info), offsetof(flashwok_kernel_info, available)},
};

int C11CallsThatAccept(void) {
  const flashwok_status statuses[] = {
      flashwok_problem_init(NULL, sizeof(flashwok_problem)),
      flashwok_forward_output_init(NULL, sizeof(flashwok_forward_output)),
      flashwok_backward_input_init(NULL, sizeof(flashwok_backward_input)),
      flashwok_gradients_init(NULL, sizeof(flashwok_gradients)),
      flashwok_execution_init(NULL, sizeof(flashwok_execution)),
      flashwok_plan_result_init(NULL, sizeof(flashwok_plan_result)),
      flashwok_kernel_info_init(NULL, sizeof(flashwok_kernel_info)),
      flashwok_plan(NULL, FLASHWOK_PASS_FORWARD, NULL, NULL, NULL, 0),
      flashwok_forward(NULL, NULL, NULL, NULL, 0),
      flashwok_backward(NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_forward_backward(NULL, NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_merge_states(NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_get_kernel(0, NULL, NULL, 0),
      flashwok_get_cpu_target(0, NULL, 0, NULL, 0),
  };
  int accepted = 0;
  for (size_t n = 0; n < sizeof(statuses) / sizeof(statuses[0]); ++n) {
    accepted += statuses[n] != FLASHWOK_STATUS_INVALID_ARGUMENT;
  }
  return accepted;
}
