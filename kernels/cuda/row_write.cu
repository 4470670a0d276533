#include <cuda_runtime.h>

#include <algorithm>

#include "kernels.h"
#include "row_write.cuh"

namespace kvsan {

namespace {
constexpr int64_t kThreads = 256;
// Blocks that share a row's cells: enough to spread one long prompt, few enough to cost nothing for short ones.
constexpr int64_t kMaxBlocksPerRow = 32;
}  // namespace

const char* launch_write_rows(int32_t* table, int64_t row_stride, int64_t num_rows, int64_t ctx, const int64_t* rows,
                              int64_t batch, const int64_t* prefix_slots, const int64_t* prefix_offsets,
                              const int64_t* new_slots, const int64_t* new_offsets, void* stream) {
    if (batch == 0 || ctx == 0) return nullptr;
    const int64_t blocks = std::min((ctx + kThreads - 1) / kThreads, kMaxBlocksPerRow);
    const dim3 grid(static_cast<unsigned>(batch), static_cast<unsigned>(blocks));
    write_rows_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        table, row_stride, num_rows, ctx, rows, prefix_slots, prefix_offsets, new_slots, new_offsets);
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace kvsan
