// SPDX-License-Identifier: Apache-2.0
// From one line of a data file to tokens with a loss mask.
#pragma once

#include <dflash/data/dataset.hpp>
#include <dflash/data/row.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace dflash::data {

struct EncodedLine {
    std::optional<RowFault> fault;        ///< set: the line is refused
    std::string shape;                    ///< of a row that could be read
    std::vector<std::string> ignored;     ///< its fields that nobody reads
    std::vector<TokenId> tokens;          // [S]; none if it is refused
    std::vector<std::uint8_t> trainable;  // [S]
    std::int64_t cut_tokens = 0;
    std::int64_t cut_trainable =
        0;  ///< trained ones among them; all of a row cut before its answer
    std::int64_t vanished_bytes = 0;
    LeftOut left_out;
};

/// Immutable; encode() may be called concurrently.
class LineEncoder {
  public:
    LineEncoder(std::shared_ptr<const Tokenizer> tokenizer,
                std::shared_ptr<const ChatFormat> format,
                const DatasetOptions& options);

    /// `ends_file` as for read_row.
    EncodedLine encode(std::string_view text, bool ends_file) const;

  private:
    EncodedLine encode_content(const Conversation& conversation, bool answer_cut) const;
    EncodedLine encode_content(const FinishedText& row) const;
    EncodedLine encode_content(FinishedTokens& row) const;
    std::vector<std::uint8_t> mask_of_tokens(const std::vector<TokenId>& ids) const;
    void cut(EncodedLine& row) const;

    std::shared_ptr<const Tokenizer> tokenizer_;
    std::shared_ptr<const ChatFormat> format_;
    RenderOptions render_;
    std::size_t max_length_;
    std::int64_t min_trained_tokens_;
};

}  // namespace dflash::data
