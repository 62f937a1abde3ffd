// SPDX-License-Identifier: Apache-2.0
#include "byte_letters.hpp"
#include "normalizer.hpp"
#include "tokenizer_impl.hpp"
#include "utf8.hpp"

#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/data/tokenizer.hpp>

#include <fmt/format.h>
#include <utility>

namespace dflash::data {
namespace {

// A text of hundreds of megabytes takes minutes, in which the run has to be seen to move.
constexpr std::int64_t kPiecesPerNote = std::int64_t{1} << 16;

// One call of encode(): goes through the text from left to right.
class Encoder {
  public:
    Encoder(const TokenizerParts& parts, std::string_view text, bool with_ranges)
        : parts_(parts), text_(text), with_ranges_(with_ranges) {}

    Encoding run() {
        std::size_t at = 0;
        std::size_t from = 0;
        while (const auto found = parts_.in_given_text.find(text_, from, at)) {
            encode_between(at, found->begin);
            emit(found->id, {narrow<std::int64_t>(found->begin), narrow<std::int64_t>(found->end)});
            at = found->end;
            from = found->text_end;
        }
        encode_between(at, text_.size());
        return std::move(encoding_);
    }

  private:
    void emit(TokenId id, ByteRange range) {
        encoding_.ids.push_back(id);
        if (with_ranges_) {
            encoding_.ranges.push_back(range);
        }
    }

    // The text between two added tokens. Only here does NFC act, so that a mark never composes with
    // the end of an added token.
    void encode_between(std::size_t begin, std::size_t end) {
        // A token may begin inside of the white space that the one before it took.
        if (begin >= end) {
            return;
        }
        const std::string_view given = text_.substr(begin, end - begin);
        given_begin_ = narrow<std::int64_t>(begin);
        changed_.reset();
        if (parts_.nfc) {
            changed_ = normalize_nfc(given);
        }
        normalized_ = changed_ ? std::string_view(changed_->text) : given;
        std::size_t at = 0;
        std::size_t from = 0;
        while (const auto found = parts_.in_normalized_text.find(normalized_, from, at)) {
            encode_plain(at, found->begin);
            emit(found->id, given_range(found->begin, found->end));
            at = found->end;
            from = found->text_end;
        }
        encode_plain(at, normalized_.size());
    }

    // A part of normalized_ without added tokens.
    void encode_plain(std::size_t begin, std::size_t end) {
        if (begin >= end) {
            return;
        }
        const std::string_view plain = normalized_.substr(begin, end - begin);
        for (const std::string_view piece : parts_.pre_tokenizer.split(plain, split_space_)) {
            if (++pieces_ % kPiecesPerNote == 0) {
                note_progress();
            }
            tokens_.clear();
            encoding_.vanished_bytes += parts_.model.encode(piece, merge_space_, tokens_);
            const auto piece_begin = static_cast<std::size_t>(piece.data() - normalized_.data());
            for (const PieceToken& token : tokens_) {
                encoding_.ids.push_back(token.id);
                if (with_ranges_) {
                    encoding_.ranges.push_back(
                        given_range(piece_begin + token.begin, piece_begin + token.end));
                }
            }
        }
    }

    // A range of normalized_, widened to whole characters, in text_.
    ByteRange given_range(std::size_t begin, std::size_t end) const {
        const ByteRange whole{narrow<std::int64_t>(character_begin(normalized_, begin)),
                              narrow<std::int64_t>(character_end(normalized_, end))};
        const ByteRange given = changed_ ? changed_->to_given(whole) : whole;
        return {given.begin + given_begin_, given.end + given_begin_};
    }

    const TokenizerParts& parts_;
    std::string_view text_;
    bool with_ranges_;
    Encoding encoding_;

    std::int64_t given_begin_ = 0;           // of the text between two added tokens
    std::optional<NormalizedText> changed_;  // its NFC, if that differs
    std::string_view normalized_;            // its NFC

    std::int64_t pieces_ = 0;
    PreTokenizer::Space split_space_;
    BpeModel::Space merge_space_;
    std::vector<PieceToken> tokens_;
};

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Encoding Tokenizer::encode(std::string_view text, bool with_ranges) const {
    if (const auto fault = find_invalid_utf8(text)) {
        throw Error(
            ErrorKind::Data,
            {.what = fmt::format("text to tokenise is not UTF-8 at byte {} of {}: got 0x{:02x}",
                                 *fault,
                                 text.size(),
                                 static_cast<unsigned char>(text[*fault])),
             .where = "",
             .cause = "",
             .hint = ""});
    }
    return Encoder(impl_->parts, text, with_ranges).run();
}

// Ids without a token (rows that pad an embedding) add nothing, as in the reference.
std::string Tokenizer::decode(std::span<const TokenId> ids) const {
    std::string bytes;
    for (const TokenId id : ids) {
        if (id >= 0 && static_cast<std::size_t>(id) < impl_->parts.decoded.size()) {
            bytes += impl_->parts.decoded[static_cast<std::size_t>(id)];
        }
    }
    return repair_utf8(std::move(bytes));
}

std::optional<TokenId> Tokenizer::id_of(std::string_view token_content) const {
    const std::string name(token_content);
    if (const auto added = impl_->parts.added_ids.find(name);
        added != impl_->parts.added_ids.end()) {
        return added->second;
    }
    if (const auto other = impl_->parts.other_ids.find(name);
        other != impl_->parts.other_ids.end()) {
        return other->second;
    }
    const std::optional<std::string> bytes = bytes_of_letters(name);
    return bytes ? impl_->parts.model.id_of(*bytes) : std::nullopt;
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const {
    return impl_->parts.added;
}

std::int64_t Tokenizer::num_ids() const {
    return impl_->parts.num_ids;
}

}  // namespace dflash::data
