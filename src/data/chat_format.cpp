// SPDX-License-Identifier: Apache-2.0
#include "chat_families.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
// Which family a target folder speaks. The rendering itself lies in a file per family.
#include <dflash/data/chat_format.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <iterator>

namespace dflash::data {

namespace {

namespace fs = std::filesystem;

struct Family {
    std::string_view name;
    std::unique_ptr<ChatFormat> (*make)();
    bool (*is_template)(std::string_view);
};

constexpr std::array kFamilies = {
    // In the order of their names: messages list them so.
    Family{"gpt-oss", make_gpt_oss_format, nullptr},
    Family{"llama3.1", make_llama31_format, nullptr},
    Family{"qwen2.5", make_qwen25_format, nullptr},
    Family{"qwen3", make_qwen3_format, is_qwen3_template},
    Family{"qwen3-2507", make_qwen3_instruct_2507_format, nullptr},
    Family{"qwen3.5", make_qwen35_format, nullptr},
    Family{"qwen3.5-small", make_qwen35_small_format, nullptr},
    Family{"qwen3.6", make_qwen36_format, nullptr},
    Family{"qwen3.8", make_qwen38_format, nullptr},
    Family{"smollm2", make_smollm2_format, is_smollm2_template},
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

bool has_added_token(const Tokenizer& tokenizer, std::string_view content) {
    const auto& added = tokenizer.added_tokens();
    return std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
        return token.content == content;
    });
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

std::unique_ptr<ChatFormat> detect_chat_format(const std::string& target_folder,
                                               const Tokenizer& tokenizer) {
    const std::string hint =
        fmt::format("Set data.chat_format to one of {}, if the target was trained on one of them",
                    fmt::join(chat_format_names(), ", "));
    // A template that is not known is never overruled by the tokens: ChatML marks are in many
    // vocabularies, with other system messages and other think blocks.
    if (const std::optional<Template> found = find_template(target_folder)) {
        for (const Family& family : kFamilies) {
            if (family.is_template != nullptr && family.is_template(found->text)) {
                return family.make();
            }
        }
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("the target's chat template is none that is supported "
                                         "(its text begins with {})",
                                         quote(found->text, 60)),
                     .where = found->path,
                     .cause = {},
                     .hint = hint});
    }
    if (!has_added_token(tokenizer, "<|im_start|>") || !has_added_token(tokenizer, "<|im_end|>")) {
        throw Error(ErrorKind::Config,
                    {.what = "the target has no chat template, and its tokenizer has no tokens "
                             "<|im_start|> and <|im_end|> that would tell its chat format",
                     .where = target_folder,
                     .cause = {},
                     .hint = hint});
    }
    // Both write ChatML; a model that was never taught to think has no mark for it.
    return make_chat_format(has_added_token(tokenizer, "<think>") ? "qwen3" : "smollm2");
}

}  // namespace dflash::data
