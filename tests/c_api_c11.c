// The C interface as C11 sees it.
#include "tests/c_api_c11.h"

const size_t (*C11Layout(void))[2] { return kSeenLayout; }

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
      flashwok_forward_bytes(NULL, NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_forward(NULL, NULL, NULL, NULL, 0),
      flashwok_backward(NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_forward_backward(NULL, NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_merge_states(NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_merge_states_on(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0),
      flashwok_get_kernel(0, NULL, NULL, 0),
      flashwok_get_cpu_target(0, NULL, 0, NULL, 0),
  };
  int accepted = 0;
  for (size_t n = 0; n < sizeof(statuses) / sizeof(statuses[0]); ++n) {
    accepted += statuses[n] != FLASHWOK_STATUS_INVALID_ARGUMENT;
  }
  return accepted;
}
