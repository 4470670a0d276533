// Writing request rows: the same work as write_rows in row_write.py, which says what it computes. Needs no torch.
#pragma once

#include <cstdint>

namespace kvsan {

// Block (i, k) writes the cells of request i that fall to it among the gridDim.y blocks of that request.
// table [num_rows, ctx] with rows row_stride apart; rows [gridDim.x]; the offsets have gridDim.x + 1 entries.
__global__ void write_rows_kernel(int32_t* table, int64_t row_stride, int64_t num_rows, int64_t ctx,
                                  const int64_t* rows, const int64_t* prefix_slots, const int64_t* prefix_offsets,
                                  const int64_t* new_slots, const int64_t* new_offsets) {
    const int64_t request = blockIdx.x;
    const int64_t row = rows[request];
    // The host cannot check values that live on the GPU without waiting for it, so nothing outside is written.
    if (row < 0 || row >= num_rows) return;
    const int64_t prefix_begin = prefix_offsets[request];
    const int64_t prefix_len = prefix_offsets[request + 1] - prefix_begin;
    const int64_t new_begin = new_offsets[request];
    const int64_t wanted = prefix_len + new_offsets[request + 1] - new_begin;
    const int64_t length = wanted < ctx ? wanted : ctx;

    int32_t* cells = table + row * row_stride;
    const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
    for (int64_t cell = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x; cell < length; cell += step) {
        const int64_t slot = cell < prefix_len ? prefix_slots[prefix_begin + cell]
                                               : new_slots[new_begin + cell - prefix_len];
        cells[cell] = static_cast<int32_t>(slot);
    }
}

}  // namespace kvsan
