// SPDX-License-Identifier: Apache-2.0
#include "float8_head.hpp"

#include <dflash/core/check.hpp>

#include <algorithm>

namespace dflash::model {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{8} << 20;

constexpr const char* kSetting = "draft.head_precision";

/// Calls task(begin, count) for pieces of `rows` rows of that length.
template <typename Task>
void for_pieces(std::int64_t rows, std::int64_t length, const Task& task) {
    const std::int64_t most = std::max<std::int64_t>(1, kPieceElements / length);
    for (std::int64_t begin = 0; begin < rows; begin += most) {
        task(begin, std::min(most, rows - begin));
    }
}

}  // namespace

HeadPrecision head_precision(const std::string& name) {
    if (name == "fp8-logits") {
        return HeadPrecision::Float8Logits;
    }
    if (name == "fp8") {
        return HeadPrecision::Float8;
    }
    DFLASH_CHECK(name == "bf16", "a head in {}", name);
    return HeadPrecision::Compute;
}

Bytes float8_head_bytes(std::int64_t vocabulary, std::int64_t hidden, HeadPrecision precision) {
    constexpr Bytes kScale = 4;
    const Bytes words = vocabulary * (hidden + kScale);
    const Bytes columns = hidden * (vocabulary + kScale);
    return (precision == HeadPrecision::Compute ? 0 : words) +
           (precision == HeadPrecision::Float8 ? columns : 0);
}

Float8Head make_float8_head(const at::Tensor& head_VH,
                            HeadPrecision precision,
                            tensor::RowOps& ops) {
    const std::int64_t V = head_VH.size(0);
    const std::int64_t H = head_VH.size(1);
    Float8Head head;
    if (precision != HeadPrecision::Compute) {
        head.words_VH = tensor::empty_float8_rows(V, H, head_VH.device());
        ops.require_float8(head.words_VH, at::kFloat8_e4m3fn, kSetting);
        for_pieces(V, H, [&](std::int64_t begin, std::int64_t count) {
            ops.quantize_rows(head.words_VH.narrow(begin, count), head_VH.narrow(0, begin, count));
        });
    }
    if (precision == HeadPrecision::Float8) {
        head.columns_HV = tensor::empty_float8_rows(H, V, head_VH.device());
        ops.require_float8(head.columns_HV, at::kFloat8_e5m2, kSetting);
        for_pieces(H, V, [&](std::int64_t begin, std::int64_t count) {
            ops.quantize_rows(head.columns_HV.narrow(begin, count),
                              head_VH.narrow(1, begin, count).t().contiguous());
        });
    }
    return head;
}

}  // namespace dflash::model
