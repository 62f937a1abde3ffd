// SPDX-License-Identifier: Apache-2.0
// Which family a target folder speaks. The rendering itself lies in a file per family.
#include "chat_families.hpp"
#include "known_templates.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/chat_format.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <initializer_list>
#include <iterator>

namespace dflash::data {

namespace {

namespace fs = std::filesystem;

struct Family {
    std::string_view name;
    std::unique_ptr<ChatFormat> (*make)();
};

constexpr std::array kFamilies = {
    // In the order of their names: messages list them so.
    Family{"gpt-oss", make_gpt_oss_format},
    Family{"llama3.1", make_llama31_format},
    Family{"qwen2.5", make_qwen25_format},
    Family{"qwen3", make_qwen3_format},
    Family{"qwen3-2507", make_qwen3_instruct_2507_format},
    Family{"qwen3.5", make_qwen35_format},
    Family{"qwen3.5-small", make_qwen35_small_format},
    Family{"qwen3.6", make_qwen36_format},
    Family{"qwen3.8", make_qwen38_format},
    Family{"smollm2", make_smollm2_format},
};

struct Template {
    std::string text;
    std::string path;
};

// The template that answers are made with; "default" where a target has several.
std::optional<std::string> template_of(const io::Json& config, const std::string& path) {
    const io::Json* entry = config.find("chat_template");
    if (entry == nullptr || entry->is_null()) {
        return std::nullopt;
    }
    if (entry->is_string()) {
        return entry->as_string();
    }
    if (entry->is_array()) {
        for (const io::Json& item : entry->items()) {
            const io::Json* name = item.find("name");
            const io::Json* text = item.find("template");
            if (name != nullptr && name->is_string() && name->as_string() == "default" &&
                text != nullptr && text->is_string()) {
                return text->as_string();
            }
        }
    }
    throw Error(ErrorKind::Config,
                {.what = fmt::format("chat_template is {}, expected text or a list with an entry "
                                     "named default",
                                     entry->kind_name()),
                 .where = path,
                 .cause = {},
                 .hint = fmt::format("Set data.chat_format to one of {}",
                                     fmt::join(chat_format_names(), ", "))});
}

// The file wins over the entry, as in transformers.
std::optional<Template> find_template(const fs::path& folder) {
    const fs::path file = folder / "chat_template.jinja";
    if (fs::exists(file)) {
        std::ifstream in(file, std::ios::binary);
        std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
        if (!in) {
            throw Error(ErrorKind::Config,
                        {.what = "cannot read the chat template",
                         .where = file.string(),
                         .cause = {},
                         .hint = {}});
        }
        return Template{std::move(text), file.string()};
    }
    const fs::path config = folder / "tokenizer_config.json";
    if (fs::exists(config)) {
        if (auto text = template_of(io::read_json_file(config.string()), config.string())) {
            return Template{*std::move(text), config.string()};
        }
    }
    return std::nullopt;
}

bool has_added_tokens(const Tokenizer& tokenizer, std::initializer_list<std::string_view> texts) {
    const auto& added = tokenizer.added_tokens();
    return std::all_of(texts.begin(), texts.end(), [&](std::string_view text) {
        return std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
            return token.content == text;
        });
    });
}

std::string names_to_set() {
    return fmt::format(
        "Set data.chat_format to the one of {} that writes the same text, or to "
        "generic with the marks of the template",
        fmt::join(chat_format_names(), ", "));
}

[[noreturn]] void refuse_template(const Template& found,
                                  const std::string& fingerprint,
                                  const std::optional<KnownTemplate>& known) {
    const std::string_view resembled = resembled_family(found.text);
    throw Error(
        ErrorKind::Config,
        {.what = known ? fmt::format("the target's chat template is that of {} (fingerprint {}), "
                                     "which no chat format here writes",
                                     known->of,
                                     fingerprint)
                       : fmt::format("the target's chat template is none that is known "
                                     "(fingerprint {}, its text begins with {})",
                                     fingerprint,
                                     quote(found.text, 60)),
         .where = found.path,
         .cause = resembled.empty() ? std::string()
                                    : fmt::format("it has marks of {}, but its text is another "
                                                  "one, so what it writes may be, too",
                                                  resembled),
         .hint = names_to_set()});
}

// Without a template: by tokens that tell one family. Qwen3.5 and later share a vocabulary, as do
// Llama 3.1 and 3.2, so these cannot be told.
DetectedFormat detect_by_tokens(const std::string& folder, const Tokenizer& tokenizer) {
    const auto by = [](std::string_view name) {
        return DetectedFormat{.format = make_chat_format(name),
                              .origin =
                                  "the tokens of the tokenizer: the target's folder has no "
                                  "chat template"};
    };
    if (has_added_tokens(tokenizer, {"<|start|>", "<|channel|>", "<|message|>", "<|return|>"})) {
        return by("gpt-oss");
    }
    const bool is_later_qwen = has_added_tokens(tokenizer, {"<|im_start|>", "<|audio_start|>"});
    if (has_added_tokens(tokenizer, {"<|im_start|>", "<|im_end|>"}) && !is_later_qwen) {
        // All three write ChatML; models that were never taught to think or to see have no marks
        // for it.
        return by(has_added_tokens(tokenizer, {"<think>"})            ? "qwen3"
                  : has_added_tokens(tokenizer, {"<|vision_start|>"}) ? "qwen2.5"
                                                                      : "smollm2");
    }
    throw Error(
        ErrorKind::Config,
        {.what = "the target has no chat template (chat_template.jinja, or chat_template in "
                 "tokenizer_config.json), and no special tokens that would tell its chat "
                 "format",
         .where = folder,
         .cause = "base models often have none",
         .hint = names_to_set()});
}

}  // namespace

std::vector<std::string> chat_format_names() {
    std::vector<std::string> names;
    names.reserve(kFamilies.size());
    for (const Family& family : kFamilies) {
        names.emplace_back(family.name);
    }
    names.emplace_back(kGenericFormat);
    return names;
}

std::unique_ptr<ChatFormat> make_chat_format(std::string_view name, const GenericMarks& marks) {
    if (name == kGenericFormat) {
        return make_generic_format(marks);
    }
    for (const Family& family : kFamilies) {
        if (family.name == name) {
            return family.make();
        }
    }
    throw Error(ErrorKind::Config,
                {.what = fmt::format("data.chat_format: got {}, expected one of {}",
                                     quote(name),
                                     fmt::join(chat_format_names(), ", ")),
                 .where = {},
                 .cause = {},
                 .hint = {}});
}

DetectedFormat detect_chat_format(const std::string& target_folder, const Tokenizer& tokenizer) {
    // A template that is not known is never overruled by the tokens: ChatML marks are in many
    // vocabularies, with other system messages and other think blocks.
    const std::optional<Template> found = find_template(target_folder);
    if (!found) {
        return detect_by_tokens(target_folder, tokenizer);
    }
    const std::string fingerprint = template_fingerprint(found->text);
    const std::optional<KnownTemplate> known = find_known_template(fingerprint);
    if (!known || known->family.empty()) {
        refuse_template(*found, fingerprint, known);
    }
    return {.format = make_chat_format(known->family),
            .origin = fmt::format(
                "the template of {} in {}", known->of, fs::path(found->path).filename().string())};
}

DetectedFormat choose_chat_format(const std::optional<std::string>& name,
                                  const GenericMarks& marks,
                                  const std::string& target_folder,
                                  const Tokenizer& tokenizer) {
    if (name) {
        return {.format = make_chat_format(*name, marks), .origin = "data.chat_format"};
    }
    return detect_chat_format(target_folder, tokenizer);
}

}  // namespace dflash::data
