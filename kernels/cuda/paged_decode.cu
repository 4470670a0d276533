#include <cuda_runtime.h>

#include <algorithm>

#include "kernels.h"
#include "numbers.cuh"
#include "paged_decode.cuh"

namespace kvsan {

namespace {

struct Arguments {
    void* out;
    const void* queries;
    const void* k_pool;
    const void* v_pool;
    const int32_t* table;
    const int64_t* rows;
    const int64_t* lens;
    float scale;
    cudaStream_t stream;
};

template <typename T, int PER_LANE>
void launch(const Arguments& a, const DecodeShape& s) {
    const dim3 grid(static_cast<unsigned>(s.batch), static_cast<unsigned>(s.q_heads));
    decode_attention_kernel<T, PER_LANE><<<grid, kWarps * kWarpSize, 0, a.stream>>>(
        static_cast<T*>(a.out), static_cast<const T*>(a.queries), static_cast<const T*>(a.k_pool),
        static_cast<const T*>(a.v_pool), a.table, a.rows, a.lens, s.k_stride, s.v_stride, s.row_stride, s.num_slots,
        s.num_rows, s.ctx, s.group, s.dim, s.v_dim, a.scale);
}

template <typename T>
void launch_for_dim(const Arguments& a, const DecodeShape& s) {
    if (std::max(s.dim, s.v_dim) <= 4 * kWarpSize) {
        launch<T, 4>(a, s);
    } else {
        launch<T, 8>(a, s);
    }
}

}  // namespace

const char* launch_decode_attention(Number number, void* out, const void* queries, const void* k_pool,
                                    const void* v_pool, const int32_t* table, const int64_t* rows, const int64_t* lens,
                                    const DecodeShape& shape, float scale, void* stream) {
    if (std::max(shape.dim, shape.v_dim) > 8 * kWarpSize) return "a head has more than 256 elements";
    if (shape.batch == 0 || shape.q_heads == 0) return nullptr;
    const Arguments arguments{out,  queries, k_pool, v_pool, table,
                              rows, lens,    scale,  static_cast<cudaStream_t>(stream)};
    switch (number) {
        case Number::kFloat16: launch_for_dim<__half>(arguments, shape); break;
        case Number::kBFloat16: launch_for_dim<__nv_bfloat16>(arguments, shape); break;
        case Number::kFloat32: launch_for_dim<float>(arguments, shape); break;
    }
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace kvsan
