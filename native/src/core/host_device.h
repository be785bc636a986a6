// TND_HOST_DEVICE marks functions that GPU kernels call too; it means nothing to the host compiler.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define TND_HOST_DEVICE __host__ __device__
#else
#define TND_HOST_DEVICE
#endif
