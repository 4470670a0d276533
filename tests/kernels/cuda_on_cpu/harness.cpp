// The project's CUDA kernels as functions of C, carried out on the CPU. 0: done, 1: the kernel cannot end.
#include "device.h"

#include "paged_decode.cuh"
#include "row_write.cuh"

namespace {

int run(Index grid, unsigned threads, std::function<void()> kernel) {
    try {
        on_cpu::launch(grid, threads, std::move(kernel));
    } catch (const std::runtime_error&) {
        return 1;
    }
    return 0;
}

}  // namespace

extern "C" int write_rows(int32_t* table, int64_t row_stride, int64_t num_rows, int64_t ctx, const int64_t* rows,
                          int64_t batch, const int64_t* prefix_slots, const int64_t* prefix_offsets,
                          const int64_t* new_slots, const int64_t* new_offsets, int64_t blocks) {
    return run({static_cast<unsigned>(batch), static_cast<unsigned>(blocks), 1}, 32, [=] {
        kvsan::write_rows_kernel(table, row_stride, num_rows, ctx, rows, prefix_slots, prefix_offsets, new_slots,
                                 new_offsets);
    });
}

extern "C" int decode_attention(float* out, const float* queries, const float* k_pool, const float* v_pool,
                                const int32_t* table, const int64_t* rows, const int64_t* lens, int64_t k_stride,
                                int64_t v_stride, int64_t row_stride, int64_t num_slots, int64_t num_rows, int64_t ctx,
                                int64_t batch, int64_t q_heads, int64_t group, int64_t dim, int64_t v_dim,
                                float scale) {
    const auto kernel = dim <= 128 && v_dim <= 128 ? kvsan::decode_attention_kernel<float, 4>
                                                   : kvsan::decode_attention_kernel<float, 8>;
    const Index grid{static_cast<unsigned>(batch), static_cast<unsigned>(q_heads), 1};
    return run(grid, kvsan::kWarps * kvsan::kWarpSize, [=] {
        kernel(out, queries, k_pool, v_pool, table, rows, lens, k_stride, v_stride, row_stride, num_slots, num_rows,
               ctx, static_cast<int>(group), static_cast<int>(dim), static_cast<int>(v_dim), scale);
    });
}

// A kernel with a fault, to show that the harness does not hang: half of a warp never reaches the barrier.
extern "C" int half_a_warp_waits() {
    return run({1, 1, 1}, 32, [] {
        if (threadIdx.x < 16) __syncthreads();
    });
}
