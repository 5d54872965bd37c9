// What c_api_c11.c, compiled as C11, shows to c_api_test.cc.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Of each struct of c_api.h: its size and the offset of its last field.
enum { kC11Structs = 10 };
extern const size_t kC11Layout[kC11Structs][2];

// Calls each function that can refuse with null pointers; how many did not.
int C11CallsThatAccept(void);

#ifdef __cplusplus
}  // extern "C"
#endif
