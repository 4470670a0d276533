// Paged decode attention: the same work as decode_attention in attention.py, which says what it computes. Needs no
// torch. The softmax is the online one (Milakov and Gimelshein, 2018), in float32.
#pragma once

#include <cmath>
#include <cstdint>

namespace kvsan {

// How a number of a pool becomes a float and back; numbers.cuh has the 16-bit ones.
template <typename T>
struct Conversion;

template <>
struct Conversion<float> {
    static __device__ float to_float(float number) { return number; }
    static __device__ float from_float(float number) { return number; }
};

constexpr int kWarps = 4;
constexpr int kWarpSize = 32;

__device__ inline float warp_sum(float value) {
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    return value;
}

// Block (i, h) computes head h of request i's query with kWarps warps. Warp w takes the cells w, w + kWarps, ... with a
// softmax of its own, and the block puts the warps' softmaxes together. A lane holds the elements lane, lane + 32, ...
// of a head, PER_LANE of them, so dim and v_dim are at most 32 * PER_LANE.
// out [gridDim.x, gridDim.y, v_dim]; queries [gridDim.x, gridDim.y, dim]; k_pool and v_pool with slots k_stride and
// v_stride elements apart; table [num_rows, ctx] with rows row_stride apart; scale has the factor log2(e).
template <typename T, int PER_LANE>
__global__ void decode_attention_kernel(T* out, const T* queries, const T* k_pool, const T* v_pool,
                                        const int32_t* table, const int64_t* rows, const int64_t* lens,
                                        int64_t k_stride, int64_t v_stride, int64_t row_stride, int64_t num_slots,
                                        int64_t num_rows, int64_t ctx, int group, int dim, int v_dim, float scale) {
    __shared__ float warp_mixed[kWarps][kWarpSize * PER_LANE];
    __shared__ float warp_best[kWarps];
    __shared__ float warp_weights[kWarps];

    const int64_t request = blockIdx.x;
    const int64_t head = request * gridDim.y + blockIdx.y;
    const int kv_head = static_cast<int>(blockIdx.y) / group;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;

    // The host cannot check values that live on the GPU without waiting for it, so nothing outside is read.
    const int64_t row = rows[request];
    const bool has_row = row >= 0 && row < num_rows;
    const int64_t length = !has_row ? 0 : lens[request] < ctx ? lens[request] : ctx;
    const int32_t* cells = table + (has_row ? row * row_stride : 0);

    float query[PER_LANE];
    float mixed[PER_LANE];
    for (int j = 0; j < PER_LANE; ++j) {
        const int element = lane + j * kWarpSize;
        query[j] = element < dim ? Conversion<T>::to_float(queries[head * dim + element]) * scale : 0.0f;
        mixed[j] = 0.0f;
    }
    float best = -INFINITY;
    float weights = 0.0f;
    for (int64_t cell = warp; cell < length; cell += kWarps) {
        const int64_t slot = cells[cell];
        if (slot < 0 || slot >= num_slots) continue;  // for the whole warp alike
        const T* key = k_pool + slot * k_stride + static_cast<int64_t>(kv_head) * dim;
        const T* value = v_pool + slot * v_stride + static_cast<int64_t>(kv_head) * v_dim;
        float score = 0.0f;
        for (int j = 0; j < PER_LANE; ++j) {
            const int element = lane + j * kWarpSize;
            if (element < dim) score += query[j] * Conversion<T>::to_float(key[element]);
        }
        score = warp_sum(score);
        const float new_best = fmaxf(best, score);
        // While no score is finite the best is -inf, and -inf less -inf would be no number.
        const float base = new_best == -INFINITY ? 0.0f : new_best;
        const float rescale = exp2f(best - base);
        const float weight = exp2f(score - base);
        weights = weights * rescale + weight;
        for (int j = 0; j < PER_LANE; ++j) {
            const int element = lane + j * kWarpSize;
            if (element < v_dim) mixed[j] = mixed[j] * rescale + weight * Conversion<T>::to_float(value[element]);
        }
        best = new_best;
    }

    for (int j = 0; j < PER_LANE; ++j) warp_mixed[warp][lane + j * kWarpSize] = mixed[j];
    if (lane == 0) {
        warp_best[warp] = best;
        warp_weights[warp] = weights;
    }
    __syncthreads();

    float block_best = -INFINITY;
    for (int w = 0; w < kWarps; ++w) block_best = fmaxf(block_best, warp_best[w]);
    const float base = block_best == -INFINITY ? 0.0f : block_best;
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += warp_weights[w] * exp2f(warp_best[w] - base);
    for (int element = static_cast<int>(threadIdx.x); element < v_dim; element += kWarps * kWarpSize) {
        float sum = 0.0f;
        for (int w = 0; w < kWarps; ++w) sum += warp_mixed[w][element] * exp2f(warp_best[w] - base);
        out[head * v_dim + element] = Conversion<T>::from_float(total == 0.0f ? 0.0f : sum / total);
    }
}

}  // namespace kvsan
