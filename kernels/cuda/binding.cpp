// Tensors in, launches out. What tensors must be like the callers in Python have checked; `stream` is the number that
// torch.cuda.Stream.cuda_stream gives.
#include <torch/extension.h>

#include "kernels.h"

namespace {

const int64_t* indices(const torch::Tensor& tensor) { return tensor.data_ptr<int64_t>(); }

void* stream_of(int64_t stream) { return reinterpret_cast<void*>(static_cast<intptr_t>(stream)); }

kvsan::Number number_of(const torch::Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case torch::kFloat16: return kvsan::Number::kFloat16;
        case torch::kBFloat16: return kvsan::Number::kBFloat16;
        case torch::kFloat32: return kvsan::Number::kFloat32;
        default: TORCH_CHECK_TYPE(false, "queries must be float16, bfloat16 or float32, not ", tensor.scalar_type());
    }
}

void write_rows(torch::Tensor table, const torch::Tensor& rows, const torch::Tensor& prefix_slots,
                const torch::Tensor& prefix_offsets, const torch::Tensor& new_slots, const torch::Tensor& new_offsets,
                int64_t stream) {
    const char* error = kvsan::launch_write_rows(
        table.data_ptr<int32_t>(), table.stride(0), table.size(0), table.size(1), indices(rows), rows.size(0),
        indices(prefix_slots), indices(prefix_offsets), indices(new_slots), indices(new_offsets), stream_of(stream));
    TORCH_CHECK(error == nullptr, "write_rows: ", error);
}

void decode_attention(torch::Tensor out, const torch::Tensor& queries, const torch::Tensor& k_pool,
                      const torch::Tensor& v_pool, const torch::Tensor& table, const torch::Tensor& rows,
                      const torch::Tensor& lens, double scale, int64_t stream) {
    kvsan::DecodeShape shape{};
    shape.batch = rows.size(0);
    shape.num_slots = k_pool.size(0);
    shape.num_rows = table.size(0);
    shape.ctx = table.size(1);
    shape.k_stride = k_pool.stride(0);
    shape.v_stride = v_pool.stride(0);
    shape.row_stride = table.stride(0);
    shape.q_heads = static_cast<int>(queries.size(1));
    shape.group = static_cast<int>(queries.size(1) / k_pool.size(1));
    shape.dim = static_cast<int>(queries.size(2));
    shape.v_dim = static_cast<int>(v_pool.size(2));
    const char* error = kvsan::launch_decode_attention(
        number_of(queries), out.data_ptr(), queries.data_ptr(), k_pool.data_ptr(), v_pool.data_ptr(),
        table.data_ptr<int32_t>(), indices(rows), indices(lens), shape, static_cast<float>(scale), stream_of(stream));
    TORCH_CHECK(error == nullptr, "decode_attention: ", error);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
    module.def("write_rows", &write_rows);
    module.def("decode_attention", &decode_attention);
}
