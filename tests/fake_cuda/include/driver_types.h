// As much of the CUDA runtime's header as the host code around V1's and V2's instances takes.
#pragma once

enum cudaError_t { cudaSuccess = 0 };
using cudaStream_t = struct CUstream_st*;
