// The host's side of the CUDA kernels: each function launches one on a stream (a cudaStream_t) and returns null, or
// what went wrong. Pointers are to device memory, strides count elements. Needs neither torch nor CUDA headers.
#pragma once

#include <cstdint>

namespace kvsan {

enum class Number { kFloat16, kBFloat16, kFloat32 };

const char* launch_write_rows(int32_t* table, int64_t row_stride, int64_t num_rows, int64_t ctx, const int64_t* rows,
                              int64_t batch, const int64_t* prefix_slots, const int64_t* prefix_offsets,
                              const int64_t* new_slots, const int64_t* new_offsets, void* stream);

struct DecodeShape {
    int64_t batch, num_slots, num_rows, ctx;
    int64_t k_stride, v_stride, row_stride;
    int q_heads, group, dim, v_dim;
};

// dim and v_dim are at most 256; scale has the factor log2(e).
const char* launch_decode_attention(Number number, void* out, const void* queries, const void* k_pool,
                                    const void* v_pool, const int32_t* table, const int64_t* rows, const int64_t* lens,
                                    const DecodeShape& shape, float scale, void* stream);

}  // namespace kvsan
