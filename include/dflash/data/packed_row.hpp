// SPDX-License-Identifier: Apache-2.0
// A packed row: several documents one after another, with everything about the step that depends on
// data decided on the host. Documents never see each other: positions restart, context and labels
// end at the document's end.
//
// T tokens of the row, D documents, N blocks (one per anchor), B block size, R rows of the head
// (slots that count).
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/data/sample.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dflash::data {

struct Document {
    SampleId id = -1;
    std::int32_t begin = 0;   ///< first token in the row
    std::int32_t length = 0;  ///< tokens
    std::int32_t first_block = 0;
    std::int32_t num_blocks = 0;
};

/// The blocks of a row. Slot k of block n sits at row position anchors[n] + k, and predicts the
/// token there; slot 0 holds the anchor itself and predicts nothing. Block slots past the
/// document's end exist, but are never labels.
struct BlockPlan {
    std::int32_t block_size = 0;  // B
    std::vector<std::int32_t>
        anchors;  // [N] row position of slot 0; rising, so grouped by document
    std::vector<std::int32_t> document;       // [N] index into PackedRow::documents
    std::vector<std::int32_t> context_begin;  // [N] first token of the anchor's document; context
                                              // is [context_begin, anchor)
    std::vector<std::int32_t>
        head_rows;                // [R] n * B + k of the slots that count (weight > 0), rising
    std::vector<TokenId> labels;  // [R]
    std::vector<float> weights;   // [R] w * m
    double weight_sum = 0;        ///< sum of weights, in the order of head_rows, in double

    std::int64_t num_blocks() const { return static_cast<std::int64_t>(anchors.size()); }
};

/// A sample that gave no document.
struct DroppedSample {
    SampleId id = -1;
    std::string reason;  ///< Sample::dropped, kNoTokens or kNoAnchor
};

inline constexpr const char* kNoTokens = "no tokens";
inline constexpr const char* kNoAnchor =
    "no anchor: no two neighbouring tokens are both trained on";

struct PackedRow {
    std::int64_t index =
        0;  ///< consecutive from 0 in this process: order of training, and slot = index mod slots
    Cursor next;  ///< where the data continues once this row was consumed
    std::int64_t num_samples =
        0;  ///< samples consumed with this row, dropped ones included (returned to limiter A)
    bool end = false;                     ///< carries nothing: the data is used up
    std::vector<DroppedSample> dropped;   ///< samples consumed with this row that are not in it
    std::vector<TokenId> tokens;          // [T]
    std::vector<std::int32_t> positions;  // [T] position inside the document
    std::vector<Document> documents;      // [D]
    BlockPlan blocks;

    std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }

    bool empty() const { return documents.empty(); }
};

}  // namespace dflash::data
