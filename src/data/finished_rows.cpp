// SPDX-License-Identifier: Apache-2.0
#include "finished_rows.hpp"

#include "python_text.hpp"

#include <dflash/core/check.hpp>

#include <limits>

namespace dflash::data {

namespace {

// Label of a position that is not trained, in all of PyTorch's losses.
constexpr std::int64_t kIgnoredLabel = -100;

// A list, or the one list inside a list: what a tokenizer returns for one text with
// return_tensors.
const std::vector<io::Json>& flat_list(const Field& field) {
    if (!field.value->is_array()) {
        refuse("wrong_type", "{} is {}, not a list", field.place, describe_found(*field.value));
    }
    const std::vector<io::Json>& items = field.value->items();
    if (items.empty() || !items.front().is_array()) {
        return items;
    }
    if (items.size() > 1) {
        refuse("wrong_type", "{} holds {} lists; a row is one sequence", field.place, items.size());
    }
    return items.front().items();
}

std::int64_t integer_at(const Field& field, std::size_t i, const io::Json& item) {
    const auto value = item.is_number() ? item.to_integer() : std::nullopt;
    if (!value) {
        refuse("wrong_type",
               "{}[{}] is {}; token ids are whole numbers from 0",
               field.place,
               i,
               describe_found(item));
    }
    return *value;
}

std::vector<TokenId> read_ids(const Field& field) {
    const std::vector<io::Json>& items = flat_list(field);
    std::vector<TokenId> ids;
    ids.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::int64_t id = integer_at(field, i, items[i]);
        if (id < 0 || id > std::numeric_limits<TokenId>::max()) {
            refuse("wrong_type",
                   "{}[{}] is {}; token ids are whole numbers from 0",
                   field.place,
                   i,
                   id);
        }
        ids.push_back(static_cast<TokenId>(id));
    }
    return ids;
}

const std::vector<io::Json>& list_beside(const Field& field, const std::vector<TokenId>& ids) {
    const std::vector<io::Json>& items = flat_list(field);
    if (items.size() != ids.size()) {
        refuse("bad_mask",
               "{} has {} entries, input_ids has {}",
               field.place,
               items.size(),
               ids.size());
    }
    return items;
}

std::vector<std::uint8_t> read_mask(const Field& field, const std::vector<TokenId>& ids) {
    const std::vector<io::Json>& items = list_beside(field, ids);
    std::vector<std::uint8_t> mask;
    mask.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
        const io::Json& item = items[i];
        const bool is_number = item.is_number();
        const bool is_one = is_number ? item.to_double() == 1 : item.is_bool() && item.as_bool();
        const bool is_zero = is_number ? item.to_double() == 0 : item.is_bool() && !item.as_bool();
        if (!is_one && !is_zero) {
            refuse("bad_mask",
                   "{}[{}] is {}; only 0, 1, true and false are allowed",
                   field.place,
                   i,
                   describe_found(item));
        }
        mask.push_back(is_one ? 1 : 0);
    }
    return mask;
}

// Labels stand at the token they name. Shifted ones would train every position on its neighbour,
// and nothing would show it.
std::vector<std::uint8_t> read_labels(const Field& field, const std::vector<TokenId>& ids) {
    const std::vector<io::Json>& items = list_beside(field, ids);
    std::vector<std::uint8_t> mask;
    mask.reserve(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
        const std::int64_t label = integer_at(field, i, items[i]);
        if (label != kIgnoredLabel && label != ids[i]) {
            refuse("bad_mask",
                   "{0}[{1}] is {2} where input_ids[{1}] is {3}; expected the same id, or {4} for "
                   "a token that is not trained",
                   field.place,
                   i,
                   label,
                   ids[i],
                   kIgnoredLabel);
        }
        mask.push_back(label == kIgnoredLabel ? 0 : 1);
    }
    return mask;
}

template <class T>
void keep_marked(std::vector<T>& values, const std::vector<std::uint8_t>& kept) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (kept[i] != 0) {
            values[count++] = values[i];
        }
    }
    values.resize(count);
}

}  // namespace

FinishedText read_finished_text(const Field& text) {
    const std::string& value = text_of(text);
    if (python_strip(value).empty()) {
        refuse("empty_text", "{} is {}", text.place, value.empty() ? "empty" : "only white space");
    }
    return {.text = value};
}

FinishedTokens read_finished_tokens(const Field& ids, RowFields& fields, std::string& shape) {
    shape = ids.name;
    FinishedTokens row{.ids = read_ids(ids), .loss_mask = {}};
    const Field mask = fields.take({"loss_mask", "assistant_mask", "assistant_masks", "labels"});
    if (mask) {
        shape += " + " + mask.name;
        row.loss_mask =
            mask.name == "labels" ? read_labels(mask, row.ids) : read_mask(mask, row.ids);
    }
    if (const Field attention = fields.take({"attention_mask"})) {
        const std::vector<std::uint8_t> kept = read_mask(attention, row.ids);
        keep_marked(row.ids, kept);
        if (row.loss_mask) {
            keep_marked(*row.loss_mask, kept);
        }
    }
    if (row.ids.empty()) {
        refuse("empty_text", "{} is empty", ids.place);
    }
    return row;
}

}  // namespace dflash::data
