#include "cuda/kernels/combine.cuh"
