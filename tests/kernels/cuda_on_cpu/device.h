// Enough of CUDA's device side to run kernels on a CPU, one block after the other: the threads of a block are fibers on
// one thread of the host, and a barrier is a fiber giving way until all of its group have arrived. A kernel in which
// some threads never arrive ends in an exception instead of hanging.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__
// Blocks run one after the other, so that one copy serves them all.
#define __shared__ static

struct Index {
    unsigned x = 0, y = 0, z = 0;
};

inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace on_cpu {

constexpr unsigned kWarp = 32;
constexpr size_t kStack = 64 * 1024;

struct Barrier {
    unsigned size = 0, arrived = 0;
    uint64_t round = 0;
};

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[kStack]};
    bool done = false;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<Barrier> warps;
    Barrier all;
    std::vector<float> exchange;
    ucontext_t host;
    unsigned running = 0;
    bool progress = false;
    std::function<void()> kernel;
};

inline Block* block = nullptr;

inline void give_way() { swapcontext(&block->fibers[block->running].context, &block->host); }

inline void wait(Barrier& barrier) {
    const uint64_t round = barrier.round;
    block->progress = true;
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0;
        ++barrier.round;
    }
    while (barrier.round == round) give_way();
}

inline void fiber_main() {
    block->kernel();
    block->fibers[block->running].done = true;
    block->progress = true;
    give_way();
}

inline void run_block(Block& now) {
    block = &now;
    for (Fiber& fiber : now.fibers) {
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStack;
        fiber.done = false;
        makecontext(&fiber.context, fiber_main, 0);
    }
    for (size_t left = now.fibers.size(); left > 0;) {
        now.progress = false;
        left = 0;
        for (unsigned thread = 0; thread < now.fibers.size(); ++thread) {
            if (now.fibers[thread].done) continue;
            now.running = thread;
            threadIdx.x = thread;
            swapcontext(&now.host, &now.fibers[thread].context);
            left += !now.fibers[thread].done;
        }
        if (left > 0 && !now.progress) throw std::runtime_error("threads wait for others that never arrive");
    }
}

// As kernel<<<grid, threads>>>(...): `threads` is a multiple of the warp size.
inline void launch(Index grid, unsigned threads, std::function<void()> kernel) {
    Block now;
    now.fibers.resize(threads);
    now.warps.resize(threads / kWarp);
    for (Barrier& warp : now.warps) warp.size = kWarp;
    now.all.size = threads;
    now.exchange.resize(threads);
    now.kernel = std::move(kernel);
    gridDim = grid;
    blockDim = {threads, 1, 1};
    for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
            blockIdx = {x, y, 0};
            run_block(now);
        }
    }
}

}  // namespace on_cpu

inline void __syncthreads() { on_cpu::wait(on_cpu::block->all); }

inline float __shfl_xor_sync(unsigned, float value, int distance) {
    on_cpu::Block& now = *on_cpu::block;
    const unsigned thread = now.running;
    on_cpu::Barrier& warp = now.warps[thread / on_cpu::kWarp];
    now.exchange[thread] = value;
    on_cpu::wait(warp);
    const float other = now.exchange[thread ^ static_cast<unsigned>(distance)];
    on_cpu::wait(warp);
    return other;
}
