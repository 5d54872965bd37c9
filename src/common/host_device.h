// One word for functions that the host and the device share.
#pragma once

#ifdef __CUDACC__
#define FLASHWOK_HOST_DEVICE __host__ __device__
#else
#define FLASHWOK_HOST_DEVICE
#endif
