// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/model/draft_format.hpp>

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <utility>

namespace dflash::model {
namespace {

using io::Json;

/// Keys of the published config.json that are no part of the Qwen3 config inside a speculators one.
constexpr std::array<std::string_view, 5> kNotOfTransformer{
    "architectures", "block_size", "dflash_config", "is_causal", "num_target_layers"};

struct Layers {
    std::int64_t full = 0;
    std::int64_t sliding = 0;

    bool mixed() const { return full > 0 && sliding > 0; }
};

Layers count_layers(const DraftConfig& config) {
    Layers layers;
    for (const LayerType type : config.layer_types) {
        ++(type == LayerType::Full ? layers.full : layers.sliding);
    }
    return layers;
}

/// The causality that all layers share, if they do.
std::optional<bool> uniform_causality(const DraftConfig& config) {
    for (std::int64_t layer = 1; layer < config.num_layers(); ++layer) {
        if (config.causal(layer) != config.causal(0)) {
            return std::nullopt;
        }
    }
    return config.causal(0);
}

Json integers(const std::vector<std::int64_t>& values) {
    std::vector<Json> items;
    for (const std::int64_t value : values) {
        items.push_back(Json::integer(value));
    }
    return Json::array(std::move(items));
}

Json strings(const std::vector<std::string>& values) {
    std::vector<Json> items;
    for (const std::string& value : values) {
        items.push_back(Json::string(value));
    }
    return Json::array(std::move(items));
}

/// The published format, with is_causal only where it says something.
Json published_json(const DraftConfig& config) {
    DraftConfig stated = config;
    stated.is_causal = stated_causality(config);
    return stated.to_json();
}

/// transformers 5 keeps the rotary embedding in rope_parameters, older versions read rope_theta:
/// each takes its own where both are there.
void add_rope_parameters(Json& json, const DraftConfig& config) {
    json.set("rope_parameters",
             Json::object({{"rope_theta", Json::number(config.rope_theta)},
                           {"rope_type", Json::string("default")}}));
}

Json vllm_json(const DraftConfig& config) {
    Json json = published_json(config);
    add_rope_parameters(json, config);
    json.set("eagle_aux_hidden_state_layer_ids", integers(auxiliary_layer_ids(config)));
    // Releases before the mixed layers know this key alone, and take every layer for bidirectional
    // without it.
    if (const std::optional<bool> causal = uniform_causality(config)) {
        Json nested = *json.find("dflash_config");
        nested.set("causal", Json::boolean(*causal));
        json.set("dflash_config", std::move(nested));
    }
    return json;
}

Json speculators_json(const DraftConfig& config, const Verifier& verifier) {
    const Json published = published_json(config);
    Json transformer = Json::object();
    for (const auto& [key, value] : published.members()) {
        if (std::find(kNotOfTransformer.begin(), kNotOfTransformer.end(), key) ==
            kNotOfTransformer.end()) {
            transformer.set(key, value);
        }
    }
    add_rope_parameters(transformer, config);
    // The flag speaks of sliding layers only; vLLM's reader takes false for all layers, full ones
    // too, so a drafter without sliding layers says true.
    const bool non_causal = !config.causal(0);
    const Json proposal =
        Json::object({{"proposal_type", Json::string("greedy")},
                      {"speculative_tokens", Json::integer(config.block_size - 1)}});
    return Json::object(
        {{"architectures", Json::array({Json::string("DFlashDraftModel")})},
         {"aux_hidden_state_layer_ids", integers(auxiliary_layer_ids(config))},
         {"block_size", Json::integer(config.block_size)},
         {"draft_vocab_size", Json::integer(config.vocab_size)},
         {"dtype", Json::string("bfloat16")},
         {"mask_token_id", Json::integer(config.mask_token_id)},
         {"num_target_layers", Json::integer(config.num_target_layers)},
         {"sample_from_anchor", Json::boolean(false)},
         {"sliding_window_non_causal", Json::boolean(non_causal)},
         {"speculators_config",
          Json::object({{"algorithm", Json::string("dflash")},
                        {"default_proposal_method", Json::string("greedy")},
                        {"proposal_methods", Json::array({proposal})},
                        {"verifier",
                         Json::object({{"architectures", strings(verifier.architectures)},
                                       {"name_or_path", Json::string(verifier.name)}})}})},
         {"speculators_model_type", Json::string("dflash")},
         {"target_hidden_size", Json::integer(config.hidden_size)},
         {"transformer_layer_config", std::move(transformer)}});
}

bool taps_last_layer(const DraftConfig& config) {
    const auto& ids = config.target_layer_ids;
    return std::find(ids.begin(), ids.end(), config.num_target_layers - 1) != ids.end();
}

std::optional<Refusal> refusal_of_speculators(const DraftConfig& config) {
    const Layers layers = count_layers(config);
    const std::optional<bool> uniform = uniform_causality(config);
    if (layers.full > 0 && uniform == true) {
        return Refusal{
            "its layers with full attention are causal (is_causal), which a speculators config "
            "cannot say: there they always see the whole block",
            "Export with --to vllm or --to zlab"};
    }
    if (!uniform) {
        return Refusal{
            "it mixes causal sliding layers with full ones, which vLLM would all make causal when "
            "it reads a speculators config (vLLM pull request 56692)",
            "Export with --to vllm"};
    }
    if (taps_last_layer(config)) {
        return Refusal{fmt::format("it taps the target's last layer, {}, which speculators keeps "
                                   "for itself and drops from the list",
                                   config.num_target_layers - 1),
                       "Train with other draft.target_layer_ids"};
    }
    return std::nullopt;
}

ServeCommand sglang_command(const DraftConfig& config,
                            const std::string& target,
                            const std::string& folder) {
    // SGLang counts the anchor as a draft token.
    ServeCommand serve{
        .server = "SGLang",
        .command = fmt::format("python3 -m sglang.launch_server --model-path {} "
                               "--speculative-algorithm DFLASH --speculative-draft-model-path {} "
                               "--speculative-num-draft-tokens {}",
                               target,
                               shell_word(folder),
                               config.block_size),
        .note = {}};
    if (stated_causality(config)) {
        serve.note =
            "needs a release with pull request 34524 (August 2026): older ones do not "
            "look at is_causal and draft worse without a word";
    }
    return serve;
}

ServeCommand vllm_command(const DraftConfig& config,
                          const std::string& target,
                          const std::string& folder) {
    // vLLM does not.
    const Json speculative =
        Json::object({{"method", Json::string("dflash")},
                      {"model", Json::string(folder)},
                      {"num_speculative_tokens", Json::integer(config.block_size - 1)}});
    const bool mixed = count_layers(config).mixed();
    return {.server = "vLLM",
            .command = fmt::format("{}vllm serve {} --speculative-config {}",
                                   mixed ? "VLLM_USE_V2_MODEL_RUNNER=1 " : "",
                                   target,
                                   shell_word(speculative.dump())),
            .note = {}};
}

}  // namespace

std::string_view to_string(DraftFormat format) {
    switch (format) {
        case DraftFormat::Zlab:
            return "zlab";
        case DraftFormat::Sglang:
            return "sglang";
        case DraftFormat::Vllm:
            return "vllm";
        case DraftFormat::Speculators:
            break;
    }
    return "speculators";
}

const std::vector<DraftFormat>& draft_formats() {
    static const std::vector<DraftFormat> formats{
        DraftFormat::Zlab, DraftFormat::Sglang, DraftFormat::Vllm, DraftFormat::Speculators};
    return formats;
}

DraftFormat parse_draft_format(std::string_view name) {
    std::vector<std::string> names;
    for (const DraftFormat format : draft_formats()) {
        if (name == to_string(format)) {
            return format;
        }
        names.emplace_back(to_string(format));
    }
    const std::optional<std::string> near = nearest_name(name, names);
    throw Error(ErrorKind::Config,
                {.what = fmt::format(
                     "unknown format {}, expected one of {}", quote(name), fmt::join(names, ", ")),
                 .where = "--to",
                 .cause = {},
                 .hint = near ? fmt::format("Did you mean {}", *near) : std::string()});
}

std::optional<bool> stated_causality(const DraftConfig& config) {
    for (std::int64_t layer = 0; layer < config.num_layers(); ++layer) {
        const bool by_default =
            config.layer_types[static_cast<std::size_t>(layer)] == LayerType::Sliding;
        if (config.causal(layer) != by_default) {
            return config.is_causal;
        }
    }
    return std::nullopt;
}

std::vector<std::int64_t> auxiliary_layer_ids(const DraftConfig& config) {
    std::vector<std::int64_t> ids;
    for (const std::int64_t id : config.target_layer_ids) {
        ids.push_back(id + 1);
    }
    return ids;
}

std::optional<Refusal> refusal(DraftFormat format, const DraftConfig& config) {
    if (config.num_target_layers == 0) {
        // SGLang refuses a 0, and without the key takes the drafter's own count.
        return Refusal{"its config.json does not say how many layers the target has",
                       "Name the target with --target"};
    }
    if (format == DraftFormat::Sglang && taps_last_layer(config)) {
        return Refusal{
            fmt::format("it taps the target's last layer, {}, whose output SGLang hands "
                        "out only after the final norm",
                        config.num_target_layers - 1),
            "Train with other draft.target_layer_ids, or serve it with vLLM (--to vllm)"};
    }
    return format == DraftFormat::Speculators ? refusal_of_speculators(config) : std::nullopt;
}

io::Json config_json(DraftFormat format, const DraftConfig& config, const Verifier& verifier) {
    DFLASH_CHECK(!refusal(format, config), "a drafter that {} refuses", to_string(format));
    switch (format) {
        case DraftFormat::Zlab:
            return published_json(config);
        case DraftFormat::Sglang: {
            Json json = published_json(config);
            add_rope_parameters(json, config);
            return json;
        }
        case DraftFormat::Vllm:
            return vllm_json(config);
        case DraftFormat::Speculators:
            break;
    }
    return speculators_json(config, verifier);
}

std::vector<ServeCommand> serve_commands(DraftFormat format,
                                         const DraftConfig& config,
                                         const std::string& target,
                                         const std::string& folder) {
    const std::string model = target.empty() ? "TARGET" : shell_word(target);
    std::vector<ServeCommand> commands;
    const auto add = [&](DraftFormat served_as, ServeCommand serve) {
        if (const std::optional<Refusal> refused = refusal(served_as, config)) {
            serve.command.clear();
            serve.note = fmt::format("cannot serve it: {}. {}", refused->reason, refused->hint);
        }
        commands.push_back(std::move(serve));
    };
    if (format == DraftFormat::Zlab || format == DraftFormat::Sglang) {
        add(DraftFormat::Sglang, sglang_command(config, model, folder));
    }
    if (format != DraftFormat::Sglang) {
        add(format, vllm_command(config, model, folder));
    }
    return commands;
}

std::string to_line(const ServeCommand& serve) {
    if (serve.command.empty()) {
        return fmt::format("serve     {} {}", serve.server, serve.note);
    }
    return fmt::format("serve     {}: {}{}",
                       serve.server,
                       serve.command,
                       serve.note.empty() ? "" : fmt::format("  ({})", serve.note));
}

}  // namespace dflash::model
