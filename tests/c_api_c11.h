// What c_api_c11.c, compiled as C11, shows to c_api_test.cc.
#pragma once

#include <stddef.h>

#include "flashwok/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// Of each struct of c_api.h: its size and the offset of its last field, as this compiler sees it.
enum { kC11Structs = 10 };
static const size_t kSeenLayout[kC11Structs][2] = {
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
// The same as C11 sees it.
const size_t (*C11Layout(void))[2];

// Calls each function that can refuse with null pointers; how many did not.
int C11CallsThatAccept(void);

#ifdef __cplusplus
}  // extern "C"
#endif
