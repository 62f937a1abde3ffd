// SPDX-License-Identifier: Apache-2.0
#include "line_encoder.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/data/answer.hpp>

#include <algorithm>
#include <type_traits>
#include <utility>

namespace dflash::data {

namespace {

std::int64_t count_trained(const std::vector<std::uint8_t>& mask) {
    return std::count(mask.begin(), mask.end(), 1);
}

EncodedLine refused(std::string kind, std::string message) {
    EncodedLine result;
    result.fault.emplace();
    result.fault->kind = std::move(kind);
    result.fault->message = std::move(message);
    return result;
}

}  // namespace

LineEncoder::LineEncoder(std::shared_ptr<const Tokenizer> tokenizer,
                         std::shared_ptr<const ChatFormat> format,
                         const DatasetOptions& options)
    : tokenizer_(std::move(tokenizer)),
      format_(std::move(format)),
      render_(options.render),
      max_length_(narrow<std::size_t>(options.max_length)),
      min_trained_tokens_(options.min_trained_tokens) {}

EncodedLine LineEncoder::encode(std::string_view text, bool ends_file) const {
    RowResult row = read_row(text, ends_file);
    if (row.fault) {
        EncodedLine result;
        result.fault = std::move(row.fault);
        return result;
    }
    EncodedLine result = std::visit(
        [&](auto& content) {
            if constexpr (std::is_same_v<std::decay_t<decltype(content)>, Conversation>) {
                return encode_content(content, row.row->answer_cut);
            } else {
                return encode_content(content);
            }
        },
        row.row->content);
    if (!result.fault && count_trained(result.trainable) == 0) {
        result = refused("nothing_trained", "no token of the row is to be trained");
    }
    if (!result.fault) {
        cut(result);
    }
    if (const std::int64_t trained = count_trained(result.trainable);
        !result.fault && trained < min_trained_tokens_) {
        result = refused("too_few_trained",
                         fmt::format("{} tokens of the row are trained, fewer than "
                                     "data.min_trained_tokens = {}",
                                     trained,
                                     min_trained_tokens_));
    }
    result.shape = std::move(row.row->shape);
    result.ignored = std::move(row.row->ignored);
    return result;
}

EncodedLine LineEncoder::encode_content(const Conversation& conversation, bool answer_cut) const {
    if (conversation.is_prompt()) {
        return refused("prompt_only",
                       fmt::format("a question without an answer (the last message is from the "
                                   "{}): there is nothing to train on",
                                   conversation.messages.back().role));
    }
    RenderOptions options = render_;
    if (!options.enable_thinking) {
        options.enable_thinking = format_->served_thinking(conversation);
    }
    Rendered rendered;
    try {
        rendered = answer_cut ? render_cut_answer(*format_, conversation, options)
                              : format_->render(conversation, options);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Data) {
            throw;
        }
        return refused("refused_by_format", error.parts().what);
    }

    // The whole text at once: tokens cross the borders of messages only where the text does.
    Encoding encoding = tokenizer_->encode(rendered.text, /*with_ranges=*/true);
    EncodedLine result;
    result.trainable = loss_mask(encoding, rendered.spans);
    result.tokens = std::move(encoding.ids);
    result.vanished_bytes = encoding.vanished_bytes;
    result.left_out = rendered.left_out;
    return result;
}

EncodedLine LineEncoder::encode_content(const FinishedText& row) const {
    Encoding encoding = tokenizer_->encode(row.text, /*with_ranges=*/true);
    EncodedLine result;
    result.trainable = loss_mask(encoding, spans_of_text(*format_, row.text));
    result.tokens = std::move(encoding.ids);
    result.vanished_bytes = encoding.vanished_bytes;
    return result;
}

EncodedLine LineEncoder::encode_content(FinishedTokens& row) const {
    const TokenId largest = *std::max_element(row.ids.begin(), row.ids.end());
    if (largest >= tokenizer_->num_ids()) {
        return refused("foreign_token",
                       fmt::format("input_ids holds {}; the ids of the target's tokenizer end at "
                                   "{}: the row was made with another tokenizer",
                                   largest,
                                   tokenizer_->num_ids() - 1));
    }
    EncodedLine result;
    result.trainable = row.loss_mask ? *std::move(row.loss_mask) : mask_of_tokens(row.ids);
    result.tokens = std::move(row.ids);
    return result;
}

// As if they were the text they stand for. Marks are whole characters, so that it does not matter
// that a token of a part of a character is no text by itself.
std::vector<std::uint8_t> LineEncoder::mask_of_tokens(const std::vector<TokenId>& ids) const {
    std::string text;
    Encoding encoding;
    encoding.ids = ids;
    for (const TokenId& id : ids) {
        const auto begin = static_cast<std::int64_t>(text.size());
        text += tokenizer_->decode({&id, 1});
        encoding.ranges.push_back({.begin = begin, .end = static_cast<std::int64_t>(text.size())});
    }
    return loss_mask(encoding, spans_of_text(*format_, text));
}

void LineEncoder::cut(EncodedLine& row) const {
    const std::size_t size = row.tokens.size();
    if (size <= max_length_) {
        return;
    }
    row.cut_tokens = static_cast<std::int64_t>(size - max_length_);
    row.cut_trainable = std::count(
        row.trainable.begin() + static_cast<std::ptrdiff_t>(max_length_), row.trainable.end(), 1);
    row.tokens.resize(max_length_);
    row.trainable.resize(max_length_);
    if (count_trained(row.trainable) == 0) {
        const std::int64_t lost = row.cut_trainable;
        row = refused("cut_before_answer",
                      fmt::format("the row has {} tokens, and no answer begins within the first {} "
                                  "(data.max_length)",
                                  size,
                                  max_length_));
        row.cut_trainable = lost;
    }
}

}  // namespace dflash::data
