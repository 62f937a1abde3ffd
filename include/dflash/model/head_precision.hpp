// SPDX-License-Identifier: Apache-2.0
// How training multiplies by the frozen head: in the compute dtype, or in 8 bits with a scale for
// each row of both operands. Evaluation and drafting always take the compute dtype.
//
// V words, H columns.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/tensor/float8.hpp>

#include <cstdint>
#include <string>

namespace dflash::model {

enum class HeadPrecision {
    Compute,       ///< the compute dtype: bf16 on GPUs
    Float8Logits,  ///< logits in e4m3
    Float8,        ///< and the gradient of the head's input: e5m2 times e4m3
};

/// "bf16", "fp8-logits" or "fp8", the values of draft.head_precision; internal error for another.
HeadPrecision head_precision(const std::string& name);

/// The head in 8 bits. Copies share the memory.
struct Float8Head {
    tensor::Float8Rows words_VH;    ///< a scale for each word; undefined with Compute
    tensor::Float8Rows columns_HV;  ///< transposed, a scale for each column; with Float8 only
};

/// Bytes of the head in 8 bits, beside the one in the compute dtype.
Bytes float8_head_bytes(std::int64_t vocabulary, std::int64_t hidden, HeadPrecision precision);

}  // namespace dflash::model
