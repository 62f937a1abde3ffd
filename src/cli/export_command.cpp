// SPDX-License-Identifier: Apache-2.0
#include "export_command.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/train/export.hpp>
#include <dflash/train/run_search.hpp>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>

namespace dflash::cli {
namespace {

std::string format_names() {
    std::vector<std::string_view> names;
    for (const model::DraftFormat format : model::draft_formats()) {
        names.push_back(to_string(format));
    }
    return fmt::format("{}", fmt::join(names, ", "));
}

const std::string& require(const std::string& value, const char* name, const std::string& hint) {
    if (value.empty()) {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("{} is missing", name),
                     .where = "command line",
                     .cause = {},
                     .hint = hint});
    }
    return value;
}

/// Where a better drafter of the same run lies, if the exported one is not its best.
std::string better_one(const train::DraftSource& source) {
    if (source.run_folder.empty()) {
        return "";
    }
    const std::optional<train::BestDraft> best = train::best_draft(source.run_folder);
    std::error_code ignored;
    if (!best || std::filesystem::equivalent(best->folder, source.draft_folder, ignored)) {
        return "";
    }
    return fmt::format("; the best of its run by held-out acceptance, {:.3f}, is that of step {}",
                       best->acceptance_length,
                       best->step);
}

void print_result(const train::ExportRequest& request, const train::ExportResult& result) {
    fmt::print("drafter   {}{}\n",
               escape_controls(result.source.draft_folder),
               escape_controls(better_one(result.source)));
    fmt::print("layers    target layers [{}] of {}, counted from 0",
               fmt::join(result.config.target_layer_ids, ", "),
               result.config.num_target_layers);
    if (request.format == model::DraftFormat::Vllm ||
        request.format == model::DraftFormat::Speculators) {
        fmt::print("; as auxiliary ids [{}]",
                   fmt::join(model::auxiliary_layer_ids(result.config), ", "));
    }
    fmt::print("\n");
    if (result.rounded_weights > 0) {
        fmt::print("rounded   {} of {} weights were not bf16 and are rounded to it\n",
                   result.rounded_weights,
                   result.num_weights);
    }
    if (result.comparison) {
        fmt::print(
            "checked   configuration, {} weights and {} hidden rows of a made-up row are the "
            "same, bit for bit\n",
            result.comparison->num_weights,
            result.comparison->num_hidden_rows);
    }
    fmt::print("exported  {}: config.json, model.safetensors ({} tensors, {})\n",
               escape_controls(request.output),
               result.num_weights,
               format_bytes(result.bytes));
    for (const model::ServeCommand& serve :
         serve_commands(request.format, result.config, result.target, request.output)) {
        fmt::print("{}\n", escape_controls(to_line(serve)));
    }
}

}  // namespace

int export_command(const Arguments& arguments, const std::string& /*command_line*/) {
    CLI::App app(
        "Writes a saved drafter in the format of a server or of another trainer, and prints how to "
        "serve it.\nRefuses what the format cannot say and what its server is known not to serve.",
        "dflash export");
    train::ExportRequest request;
    std::string format;
    app.add_option("CHECKPOINT", request.source, "folder of a run, of a step or of a drafter");
    app.add_option("--to", format, "format: " + format_names());
    app.add_option("--output", request.output, "folder to write; must not be there yet");
    app.add_option("--step", request.step, "of a run: which step; default the newest");
    app.add_option("--target",
                   request.target,
                   "target model, a folder or ORG/NAME in the Hugging Face cache; default that of "
                   "the run");
    app.add_flag("--check",
                 request.check,
                 "reads the result again and compares it bit for bit, weights and what they "
                 "compute, before it gets its name");
    if (!parse(app, arguments)) {
        return 0;
    }
    require(request.source, "CHECKPOINT", "Name the folder of a run, of a step or of a drafter");
    request.format = model::parse_draft_format(
        require(format, "--to", fmt::format("Give one of {}", format_names())));
    require(request.output, "--output", "Name the folder to write");
    print_result(request, train::export_draft(request));
    return 0;
}

}  // namespace dflash::cli
