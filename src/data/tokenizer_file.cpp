// SPDX-License-Identifier: Apache-2.0
// Reading of tokenizer.json: everything that would give other ids than the file means is refused
// here, before the first text.
#include "byte_letters.hpp"
#include "normalizer.hpp"
#include "tokenizer_impl.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <set>
#include <utility>

namespace dflash::data {
namespace {

constexpr const char* kSupported =
    "supported are byte-level BPE tokenizers as SmolLM2, Qwen3, Llama 3 and gpt-oss have";

// Tables are indexed by id. The largest vocabularies have 262,144 tokens.
constexpr TokenId kMaxId = (1 << 22) - 1;

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
    throw Error(ErrorKind::Config, {.what = what, .where = where, .cause = "", .hint = kSupported});
}

TokenId read_id(const io::Json& json, const std::string& token, const std::string& where) {
    const std::optional<std::int64_t> id = json.is_number() ? json.to_integer() : std::nullopt;
    if (!id || *id < 0 || *id > kMaxId) {
        refuse(fmt::format("token {} has the id {}, expected an integer from 0 to {}",
                           quote(token),
                           json.dump(),
                           kMaxId),
               where);
    }
    return static_cast<TokenId>(*id);
}

// NFC, nothing, or a Sequence of these.
bool read_normalizer(const io::Json* json, const std::string& where) {
    if (json == nullptr || json->is_null()) {
        return false;
    }
    const std::string type = json->require_string("type", where);
    if (type == "NFC") {
        return true;
    }
    const io::Json* parts = json->find("normalizers");
    if (type != "Sequence" || parts == nullptr || !parts->is_array()) {
        refuse(fmt::format("normalizer of type {}, expected NFC or null", quote(type)), where);
    }
    bool nfc = false;
    for (const io::Json& part : parts->items()) {
        nfc = read_normalizer(&part, where) || nfc;
    }
    return nfc;
}

// The decoder decides nothing that we use, but another one means another kind of vocabulary.
void check_decoder(const io::Json* json, const std::string& where) {
    if (json == nullptr || !json->is_object()) {
        refuse(fmt::format("decoder is {}, expected one of type ByteLevel",
                           json == nullptr ? "absent" : json->kind_name()),
               where);
    }
    const std::string type = json->require_string("type", where);
    const io::Json* parts = json->find("decoders");
    if (type == "Sequence" && parts != nullptr && parts->is_array() && parts->items().size() == 1) {
        check_decoder(&parts->items().front(), where);
    } else if (type != "ByteLevel") {
        refuse(fmt::format("decoder of type {}, expected ByteLevel", quote(type)), where);
    }
}

// Options of the model that would change ids.
void check_model(const io::Json& model, const std::string& where) {
    const std::string type = model.optional_string("type", where).value_or("BPE");
    if (type != "BPE") {
        refuse(fmt::format("model of type {}, expected BPE", quote(type)), where);
    }
    if (model.optional_bool("byte_fallback", where).value_or(false)) {
        refuse(
            "model with byte_fallback true, which SentencePiece vocabularies have, expected a "
            "byte-level one",
            where);
    }
    if (model.optional_number("dropout", where).value_or(0) != 0) {
        refuse(fmt::format("model with dropout {}, expected null",
                           model.find("dropout")->number_text()),
               where);
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        const std::string value = model.optional_string(key, where).value_or("");
        if (!value.empty()) {
            refuse(fmt::format("model with {} {}, expected none", key, quote(value)), where);
        }
    }
}

struct AddedEntry {
    AddedToken token;
    bool normalized = false;
    TokenEdges edges;
};

AddedEntry read_added(const io::Json& json, TokenId id, const std::string& where) {
    AddedEntry entry;
    entry.token.id = id;
    entry.token.content = json.require_string("content", where);
    entry.token.special = json.optional_bool("special", where).value_or(false);
    entry.normalized = json.optional_bool("normalized", where).value_or(!entry.token.special);
    const auto flag = [&](const char* key) {
        return json.optional_bool(key, where).value_or(false);
    };
    entry.edges = {
        .single_word = flag("single_word"), .lstrip = flag("lstrip"), .rstrip = flag("rstrip")};
    return entry;
}

class Reader {
  public:
    Reader(const io::Json& json, const std::string& where) : json_(json), where_(where) {}

    TokenizerParts read(const io::Json* extra_added) {
        if (!json_.is_object()) {
            refuse(
                fmt::format("found {}, expected the object of a tokenizer.json", json_.kind_name()),
                where_);
        }
        const io::Json* model = json_.find("model");
        if (model == nullptr || !model->is_object()) {
            refuse("no object \"model\"", where_);
        }
        check_model(*model, where_);
        const bool nfc = read_normalizer(json_.find("normalizer"), where_);
        const io::Json* pre_tokenizer = json_.find("pre_tokenizer");
        PreTokenizer steps =
            PreTokenizer::from_json(pre_tokenizer == nullptr ? io::Json{} : *pre_tokenizer, where_);
        check_decoder(json_.find("decoder"), where_);
        for (const char* key : {"truncation", "padding"}) {
            const io::Json* value = json_.find(key);
            if (value != nullptr && !value->is_null()) {
                log_warning("{}: {} is set and not used", where_, key);
            }
        }
        read_vocabulary(*model);
        const std::vector<BpeModel::Pair> merges = read_merges(*model);
        const bool ignore_merges = model->optional_bool("ignore_merges", where_).value_or(false);
        parts_ = std::make_unique<TokenizerParts>(
            TokenizerParts{.nfc = nfc,
                           .pre_tokenizer = std::move(steps),
                           .model = BpeModel(bytes_of_, merges, ignore_merges),
                           .added = {},
                           .in_given_text = {},
                           .in_normalized_text = {},
                           .added_ids = {},
                           .other_ids = std::move(other_ids_),
                           .decoded = {},
                           .num_ids = 0});
        check_missing_bytes(*model);
        read_added_tokens(extra_added);
        finish();
        return std::move(*parts_);
    }

  private:
    // Fills names_, bytes_of_, by_name_ and other_ids_.
    void read_vocabulary(const io::Json& model) {
        const io::Json* vocab = model.find("vocab");
        if (vocab == nullptr || !vocab->is_object() || vocab->members().empty()) {
            refuse("model without an object \"vocab\" of tokens and ids", where_);
        }
        const auto& members = vocab->members();
        bytes_of_.resize(members.size());
        names_.resize(members.size());
        by_name_.reserve(members.size());
        for (const auto& [name, value] : members) {
            const auto id = static_cast<std::size_t>(read_id(value, name, where_));
            if (id >= names_.size()) {
                bytes_of_.resize(id + 1);
                names_.resize(id + 1);
            }
            if (names_[id] != nullptr) {
                refuse(fmt::format("tokens {} and {} have the same id {}",
                                   quote(*names_[id]),
                                   quote(name),
                                   id),
                       where_);
            }
            names_[id] = &name;
            bytes_of_[id] = bytes_of_letters(name);
            if (!bytes_of_[id]) {
                other_ids_.emplace(name, static_cast<TokenId>(id));
            }
            if (!by_name_.emplace(name, static_cast<TokenId>(id)).second) {
                refuse(fmt::format("token {} stands twice in the vocabulary", quote(name)), where_);
            }
        }
    }

    TokenId id_of_part(std::string_view name, std::size_t rank) const {
        const auto found = by_name_.find(name);
        if (found == by_name_.end() || !bytes_of_[static_cast<std::size_t>(found->second)]) {
            refuse(fmt::format("merge {} needs the token {}, which the vocabulary does not have in "
                               "byte letters",
                               rank,
                               quote(name)),
                   where_);
        }
        return found->second;
    }

    // Both ways of writing occur: "a b", and ["a", "b"].
    std::vector<BpeModel::Pair> read_merges(const io::Json& model) const {
        const io::Json* list = model.find("merges");
        if (list == nullptr || !list->is_array()) {
            refuse("model without a list \"merges\"", where_);
        }
        std::vector<BpeModel::Pair> merges;
        merges.reserve(list->items().size());
        std::string joined;
        for (const io::Json& item : list->items()) {
            const std::size_t rank = merges.size();
            std::string_view left;
            std::string_view right;
            if (item.is_string()) {
                const std::string_view text = item.as_string();
                const std::size_t space = text.find(' ');
                if (space == std::string_view::npos ||
                    text.find(' ', space + 1) != std::string_view::npos) {
                    refuse_merge(item, rank);
                }
                left = text.substr(0, space);
                right = text.substr(space + 1);
            } else if (item.is_array() && item.items().size() == 2 && item.items()[0].is_string() &&
                       item.items()[1].is_string()) {
                left = item.items()[0].as_string();
                right = item.items()[1].as_string();
            } else {
                refuse_merge(item, rank);
            }
            joined.assign(left).append(right);
            merges.push_back({.left = id_of_part(left, rank),
                              .right = id_of_part(right, rank),
                              .joined = id_of_part(joined, rank)});
        }
        return merges;
    }

    [[noreturn]] void refuse_merge(const io::Json& item, std::size_t rank) const {
        refuse(fmt::format(
                   "merge {} is {}, expected \"a b\" or [\"a\", \"b\"]", rank, quote(item.dump())),
               where_);
    }

    // Some vocabularies lack bytes that UTF-8 never or hardly ever has (SmolLM2 lacks 21).
    void check_missing_bytes(const io::Json& model) const {
        const int missing = parts_->model.num_missing_bytes();
        if (missing == 256) {
            refuse(
                "no token of the vocabulary stands for a single byte, so it is not a byte-level "
                "one",
                where_);
        }
        const std::string unknown = model.optional_string("unk_token", where_).value_or("");
        if (missing > 0 && !unknown.empty()) {
            refuse(fmt::format("{} of 256 bytes have no token and unk_token is {}, expected a "
                               "token for every byte, or no unk_token",
                               missing,
                               quote(unknown)),
                   where_);
        }
        if (missing > 0) {
            log_debug("{}: {} of 256 bytes have no token; they vanish from texts", where_, missing);
        }
    }

    void read_added_tokens(const io::Json* extra_added) {
        const io::Json* list = json_.find("added_tokens");
        if (list != nullptr && !list->is_null()) {
            if (!list->is_array()) {
                refuse(fmt::format("added_tokens is {}, expected a list", list->kind_name()),
                       where_);
            }
            for (const io::Json& item : list->items()) {
                const io::Json* id = item.find("id");
                add(read_added(item,
                               read_id(id == nullptr ? io::Json{} : *id,
                                       item.optional_string("content", where_).value_or(""),
                                       where_),
                               where_));
            }
        }
        if (extra_added != nullptr && extra_added->is_object()) {
            for (const auto& [key, item] : extra_added->members()) {
                add_extra(key, item);
            }
        }
    }

    // An entry of added_tokens_decoder; those that tokenizer.json has as well say nothing new.
    void add_extra(const std::string& key, const io::Json& item) {
        const io::Json parsed = io::Json::parse(key, where_);
        const AddedEntry entry = read_added(item, read_id(parsed, key, where_), where_);
        const std::string& content = entry.token.content;
        if (const auto known = parts_->added_ids.find(content); known != parts_->added_ids.end()) {
            if (known->second != entry.token.id) {
                log_warning(
                    "{}: {} has the id {} in tokenizer.json and {} in "
                    "tokenizer_config.json; the first is used",
                    where_,
                    quote(content),
                    known->second,
                    entry.token.id);
            }
            return;
        }
        if (added_at_.contains(entry.token.id)) {
            log_warning(
                "{}: tokenizer_config.json gives the id {} to {}, which tokenizer.json "
                "gives to another token; not used",
                where_,
                entry.token.id,
                quote(content));
            return;
        }
        add(entry);
    }

    void add(const AddedEntry& entry) {
        const AddedToken& token = entry.token;
        if (token.content.empty()) {
            log_warning("{}: added token {} has no text and is left out", where_, token.id);
            return;
        }
        check_added(token);
        parts_->added_ids.emplace(token.content, token.id);
        added_at_.insert(token.id);
        if (entry.normalized) {
            const auto changed =
                parts_->nfc ? normalize_nfc(token.content) : std::optional<NormalizedText>();
            parts_->in_normalized_text.add(
                changed ? changed->text : token.content, token.id, entry.edges);
        } else {
            parts_->in_given_text.add(token.content, token.id, entry.edges);
        }
        parts_->added.push_back(token);
    }

    // The file must agree with itself about ids: texts and embeddings are matched by them.
    void check_added(const AddedToken& token) const {
        const auto clash = [&](const std::string& other) {
            refuse(fmt::format(
                       "added token {} has the id {}, {}", quote(token.content), token.id, other),
                   where_);
        };
        const auto again = parts_->added_ids.find(token.content);
        if (again != parts_->added_ids.end()) {
            clash(fmt::format("and also the id {}", again->second));
        }
        if (added_at_.contains(token.id)) {
            clash("which another added token has");
        }
        const auto at = static_cast<std::size_t>(token.id);
        if (at < names_.size() && names_[at] != nullptr && *names_[at] != token.content) {
            clash(fmt::format("which in the vocabulary is {}", quote(*names_[at])));
        }
        const auto name = by_name_.find(token.content);
        if (name != by_name_.end() && name->second != token.id) {
            clash(fmt::format("in the vocabulary {}", name->second));
        }
    }

    // Order by id, the number of ids, and the text of every id.
    void finish() {
        std::sort(parts_->added.begin(),
                  parts_->added.end(),
                  [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
        std::size_t num_ids = names_.size();
        while (num_ids > 0 && names_[num_ids - 1] == nullptr) {
            --num_ids;
        }
        if (!parts_->added.empty()) {
            num_ids = std::max(num_ids, static_cast<std::size_t>(parts_->added.back().id) + 1);
        }
        parts_->num_ids = static_cast<std::int64_t>(num_ids);
        // As the ByteLevel decoder of tokenizers: byte letters are bytes, in added tokens too, and
        // a token with any other character stands for its text.
        parts_->decoded.resize(num_ids);
        for (std::size_t id = 0; id < names_.size(); ++id) {
            if (names_[id] != nullptr) {
                parts_->decoded[id] = bytes_of_[id] ? *bytes_of_[id] : *names_[id];
            }
        }
        for (const AddedToken& token : parts_->added) {
            parts_->decoded[static_cast<std::size_t>(token.id)] =
                bytes_of_letters(token.content).value_or(token.content);
        }
    }

    const io::Json& json_;
    const std::string& where_;
    std::vector<std::optional<std::string>> bytes_of_;       // by id
    std::vector<const std::string*> names_;                  // by id, as the file writes them
    std::unordered_map<std::string_view, TokenId> by_name_;  // keys lie in json_
    std::unordered_map<std::string, TokenId> other_ids_;
    std::set<TokenId> added_at_;
    std::unique_ptr<TokenizerParts> parts_;
};

}  // namespace

TokenizerParts read_tokenizer_json(const io::Json& json,
                                   const io::Json* extra_added,
                                   const std::string& where) {
    return Reader(json, where).read(extra_added);
}

Tokenizer Tokenizer::from_json(const io::Json& json, const std::string& where) {
    return Tokenizer(std::make_unique<const Impl>(Impl{read_tokenizer_json(json, nullptr, where)}));
}

Tokenizer Tokenizer::from_file(const std::string& path) {
    const io::Json json = io::read_json_file(path);
    // Qwen3.5 and later define some added tokens in the neighbouring file only.
    const std::filesystem::path config =
        std::filesystem::path(path).parent_path() / "tokenizer_config.json";
    std::error_code unreadable;
    io::Json neighbour;
    if (std::filesystem::exists(config, unreadable)) {
        neighbour = io::read_json_file(config.string());
    }
    const io::Json* extra_added = neighbour.find("added_tokens_decoder");
    return Tokenizer(
        std::make_unique<const Impl>(Impl{read_tokenizer_json(json, extra_added, path)}));
}

}  // namespace dflash::data
