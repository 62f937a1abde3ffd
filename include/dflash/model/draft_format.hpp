// SPDX-License-Identifier: Apache-2.0
// Formats in which a drafter is handed on, what the servers that read them can serve, and the
// commands that do. Tensors have the same names and shapes in all of them (weight_specs); what
// differs is config.json.
//
// Sources: SGLang 00731f0 speculative/dflash_utils.py; vLLM 036a00d models/qwen3_dflash.py, 0cfdd2e
// spec_decode/eagle/eagle3_utils.py; speculators 0a09610 models/dflash/config.py, 04013bd
// convert/dflash/converter.py.
#pragma once

#include <dflash/io/json.hpp>
#include <dflash/model/config.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::model {

enum class DraftFormat {
    Zlab,         ///< the published format, as checkpoints hold it
    Sglang,       ///< the same, with both spellings of the rotary embedding
    Vllm,         ///< the same, with vLLM's own layer ids and causality said where it is uniform
    Speculators,  ///< a speculators config around a Qwen3 config
};

/// "zlab", "sglang", "vllm", "speculators".
std::string_view to_string(DraftFormat format);

/// All formats, in the order of their declaration.
const std::vector<DraftFormat>& draft_formats();

/// Reads a name. Throws Error{Config} with the nearest one and the list.
DraftFormat parse_draft_format(std::string_view name);

/// The target as a speculators config names it.
struct Verifier {
    std::string name;                        ///< ORG/NAME or a folder
    std::vector<std::string> architectures;  ///< {"Qwen3ForCausalLM"}
};

/// Why a drafter cannot be handed on in a format, and what to do instead.
struct Refusal {
    std::string reason;
    std::string hint;
};

/// What the format cannot say, or its server is known not to serve; nothing if all is well.
std::optional<Refusal> refusal(DraftFormat format, const DraftConfig& config);

/// config.json of a drafter; DraftConfig::from_json reads each of them back to the same drafter.
/// The drafter must not be refused; `verifier` is used by Speculators only.
io::Json config_json(DraftFormat format, const DraftConfig& config, const Verifier& verifier);

/// The top-level key is_causal where some layer differs from its default (full attention sees the
/// whole block, a sliding window only earlier slots); nothing where all have it.
std::optional<bool> stated_causality(const DraftConfig& config);

/// Layer ids as vLLM and speculators count them: from 1, the output of layer l is l + 1.
std::vector<std::int64_t> auxiliary_layer_ids(const DraftConfig& config);

/// How a server is started with the drafter, or why it cannot be.
struct ServeCommand {
    std::string server;   ///< "SGLang", "vLLM"
    std::string command;  ///< one line for a POSIX shell; empty if it is refused
    std::string note;     ///< what else to know, or the reason and what to do; often empty
};

/// For each server that reads the format. `target` and `folder` as the user would write them; an
/// empty target becomes the word TARGET.
std::vector<ServeCommand> serve_commands(DraftFormat format,
                                         const DraftConfig& config,
                                         const std::string& target,
                                         const std::string& folder);

/// "serve     vLLM: vllm serve ..." with the note behind it.
std::string to_line(const ServeCommand& serve);

}  // namespace dflash::model
