// The 16-bit numbers by named functions only: torch builds with the operators and implicit conversions switched off.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "paged_decode.cuh"

namespace kvsan {

template <>
struct Conversion<__half> {
    static __device__ float to_float(__half number) { return __half2float(number); }
    static __device__ __half from_float(float number) { return __float2half(number); }
};

template <>
struct Conversion<__nv_bfloat16> {
    static __device__ float to_float(__nv_bfloat16 number) { return __bfloat162float(number); }
    static __device__ __nv_bfloat16 from_float(float number) { return __float2bfloat16(number); }
};

}  // namespace kvsan
