#include "cuda/kernels/merge_states.cuh"
