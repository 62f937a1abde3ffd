// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/data/absent_format.hpp>
#include <dflash/data/data_list.hpp>
#include <dflash/kernels/kernel_cache.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/train/run_data.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <thread>

namespace dflash::train {
namespace {

// A tokenizer of another model writes tokens that the embedding has no row for.
void check_tokenizer_fits(const RunText& text) {
    if (text.tokenizer->num_ids() > text.target.vocab_size) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("the tokenizer has ids up to {}, expected less than {}, "
                                         "the vocab_size of the target",
                                         text.tokenizer->num_ids() - 1,
                                         text.target.vocab_size),
                     .where = text.location.folder,
                     .cause = {},
                     .hint = "tokenizer.json and config.json do not belong together; download the "
                             "model again"});
    }
}

}  // namespace

RunText open_text(const Settings& settings) {
    RunText text;
    text.location = target::find_target(settings.run.target);
    text.target = target::TargetConfig::read(text.location.folder);
    text.tokenizer = std::make_shared<const data::Tokenizer>(data::Tokenizer::from_file(
        (std::filesystem::path(text.location.folder) / "tokenizer.json").string()));
    check_tokenizer_fits(text);
    try {
        data::DetectedFormat format = data::choose_chat_format(settings.data.chat_format,
                                                               settings.data.generic,
                                                               text.location.folder,
                                                               *text.tokenizer);
        text.format = std::move(format.format);
        text.format_origin = std::move(format.origin);
    } catch (const Error& error) {
        // Rows of finished tokens need no format; any other row ends the run with this error. A
        // name that was asked for is wrong in any case.
        if (error.kind() != ErrorKind::Config || settings.data.chat_format) {
            throw;
        }
        text.format = data::make_absent_format(error);
        text.format_origin = "not known";
    }
    return text;
}

std::string cache_root(const CacheSettings& settings) {
    return settings.dir.empty() ? kernels::default_cache_root() : settings.dir;
}

data::DatasetOptions dataset_options(const Settings& settings) {
    data::DatasetOptions options;
    options.max_length = settings.data.max_length;
    options.max_bad_fraction = settings.data.max_bad_fraction;
    options.min_trained_tokens = settings.data.min_trained_tokens;
    options.max_anchors = settings.draft.anchors;
    options.target_answers = settings.data.responses != "dataset";
    options.render = settings.data.render;
    options.block_size = settings.draft.block_size.value_or(options.block_size);
    options.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    if (const std::string root = cache_root(settings.cache); !root.empty()) {
        options.files.cache_folder = root + "/index";
    }
    return options;
}

data::Dataset open_data(const std::string& list,
                        const RunText& text,
                        const data::DatasetOptions& options) {
    const std::vector<data::DataFile> files = data::parse_data_list(list);
    if (files.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = "no training data",
                     .where = {},
                     .cause = {},
                     .hint = "Name a JSON-lines file with --data prompts.jsonl"});
    }
    return data::Dataset::open(files, text.tokenizer, text.format, options);
}

}  // namespace dflash::train
