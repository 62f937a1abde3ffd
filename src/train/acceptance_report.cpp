// SPDX-License-Identifier: Apache-2.0
// The report of real decoding as a table and as JSON.
#include <dflash/core/text.hpp>
#include <dflash/train/acceptance_run.hpp>
#include <dflash/train/acceptance_texts.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace dflash::train {
namespace {

std::string rule_text(const EvalSettings& eval) {
    if (eval.temperature == 0) {
        return "greedy";
    }
    return fmt::format("temperature {}{}{}",
                       eval.temperature,
                       eval.top_p < 1 ? fmt::format(", top-p {}", eval.top_p) : "",
                       eval.top_k > 0 ? fmt::format(", top-k {}", eval.top_k) : "");
}

/// "  label          71 %  52 %": shares by slot.
std::string shares_line(const std::string& label, const std::vector<double>& shares) {
    std::string line = fmt::format("  {:<20}", label);
    for (const double share : shares) {
        line += fmt::format("{:>4.0f}%", 100 * share);
    }
    return line;
}

std::string decoding_line(const char* label,
                          const DecodingResult& result,
                          const DecodingResult& plain) {
    const double speed_up =
        plain.tokens_per_s() > 0 ? result.tokens_per_s() / plain.tokens_per_s() : 0;
    return fmt::format("  {:<20}{:>6.2f}{:>15.2f}{:>12.0f}{:>10.2f} x",
                       label,
                       result.acceptance.tau(),
                       result.acceptance.tokens_per_call(),
                       result.tokens_per_s(),
                       speed_up);
}

void add_groups(const char* title,
                const std::vector<PromptGroup>& groups,
                std::vector<std::string>& lines) {
    if (groups.empty()) {
        return;
    }
    lines.push_back("");
    lines.push_back(
        fmt::format("{:<22}{:>8}{:>14}{:>16}", title, "prompts", "tau drafter", "tau look-up"));
    for (const PromptGroup& group : groups) {
        lines.push_back(fmt::format("  {:<20}{:>8}{:>14.2f}{:>16.2f}",
                                    escape_controls(group.name).substr(0, 20),
                                    group.prompts,
                                    group.drafter.tau(),
                                    group.lookup.tau()));
    }
}

io::Json numbers(const std::vector<double>& values) {
    std::vector<io::Json> items;
    for (const double value : values) {
        items.push_back(io::Json::number(value));
    }
    return io::Json::array(std::move(items));
}

io::Json decoding_json(const DecodingResult& result) {
    const eval::Acceptance& acceptance = result.acceptance;
    return io::Json::object({{"tau", io::Json::number(acceptance.tau())},
                             {"tokens_per_call", io::Json::number(acceptance.tokens_per_call())},
                             {"rounds", io::Json::integer(acceptance.rounds())},
                             {"kept_by_slot", numbers(acceptance.kept_by_slot())},
                             {"right_by_slot", numbers(acceptance.right_by_slot())},
                             {"tokens", io::Json::integer(result.round_tokens)},
                             {"seconds", io::Json::number(result.rounds_s)},
                             {"tokens_per_s", io::Json::number(result.tokens_per_s())}});
}

io::Json groups_json(const std::vector<PromptGroup>& groups) {
    std::vector<io::Json> items;
    for (const PromptGroup& group : groups) {
        items.push_back(
            io::Json::object({{"name", io::Json::string(group.name)},
                              {"prompts", io::Json::integer(group.prompts)},
                              {"tau", io::Json::number(group.drafter.tau())},
                              {"lookup_tau", io::Json::number(group.lookup.tau())},
                              {"kept_by_slot", numbers(group.drafter.kept_by_slot())}}));
    }
    return io::Json::array(std::move(items));
}

io::Json judged_json(const std::optional<TeacherForcedResult>& judged) {
    if (!judged) {
        return {};
    }
    return io::Json::object({{"texts", io::Json::integer(judged->texts)},
                             {"right_by_slot", numbers(judged->right_by_slot)},
                             {"tau", io::Json::number(judged->walked_tau)}});
}

io::Json greedy_json(const std::optional<eval::GreedyComparison>& greedy) {
    if (!greedy) {
        return {};
    }
    return io::Json::object({{"texts", io::Json::integer(greedy->texts)},
                             {"equal_tokens", io::Json::integer(greedy->tokens)},
                             {"ties", io::Json::integer(std::ssize(greedy->ties))}});
}

io::Json shown_json(const std::vector<ShownText>& texts) {
    std::vector<io::Json> items;
    for (const ShownText& text : texts) {
        std::vector<io::Json> rounds;
        for (const ShownText::Piece& round : text.rounds) {
            rounds.push_back(io::Json::object({{"kept", io::Json::string(round.kept)},
                                               {"refused", io::Json::string(round.refused)},
                                               {"own", io::Json::string(round.own)}}));
        }
        items.push_back(io::Json::object({{"place", io::Json::string(text.place)},
                                          {"prompt", io::Json::string(text.prompt)},
                                          {"plain", io::Json::string(text.plain)},
                                          {"first", io::Json::string(text.first)},
                                          {"rounds", io::Json::array(std::move(rounds))}}));
    }
    return io::Json::array(std::move(items));
}

}  // namespace

io::Json AcceptanceReport::to_json() const {
    io::Json left = io::Json::object();
    for (const auto& [reason, group] : left_out) {
        left.set(reason, io::Json::integer(group.count));
    }
    std::vector<io::Json> warning_items;
    for (const std::string& warning : warnings) {
        warning_items.push_back(io::Json::string(warning));
    }
    return io::Json::object(
        {{"target", io::Json::string(target)},
         {"draft", io::Json::string(draft)},
         {"device", io::Json::string(fmt::format("{}", fmt::join(devices, "; ")))},
         {"block_size", io::Json::integer(config.block_size)},
         {"temperature", io::Json::number(eval.temperature)},
         {"top_p", io::Json::number(eval.top_p)},
         {"top_k", io::Json::integer(eval.top_k)},
         {"seed", io::Json::integer(seed)},
         {"max_new_tokens", io::Json::integer(*eval.acceptance_tokens)},
         {"batch", io::Json::integer(eval.batch)},
         {"prompts", io::Json::integer(num_prompts)},
         {"rows", io::Json::integer(num_rows)},
         {"left_out", left},
         {"drafter", decoding_json(drafter)},
         {"prompt_lookup", decoding_json(lookup)},
         {"plain", decoding_json(plain)},
         {"by_category", groups_json(categories)},
         {"by_thinking", groups_json(modes)},
         {"equal_to_plain", greedy_json(greedy)},
         {"teacher_forced", judged_json(written)},
         {"compared_rounds", io::Json::integer(agreement.rounds)},
         {"equal_rounds", io::Json::integer(agreement.equal)},
         {"teacher_forced_on_answers", judged_json(answers)},
         {"shown", shown_json(shown)},
         {"warnings", io::Json::array(std::move(warning_items))}});
}

std::vector<std::string> AcceptanceReport::to_lines() const {
    std::vector<std::string> lines;
    const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
        lines.push_back(fmt::format(format, std::forward<Args>(args)...));
    };
    add("target    {}", target);
    add("drafter   {}: {} layers, block size {}, target layers [{}]",
        draft,
        config.num_layers(),
        config.block_size,
        fmt::join(config.target_layer_ids, ", "));
    add("prompts   {} of {} rows, {}, at most {} new tokens each, {} at a time, seed {}",
        num_prompts,
        format_count(num_rows),
        rule_text(eval),
        *eval.acceptance_tokens,
        eval.batch,
        seed);
    for (const auto& [reason, group] : left_out) {
        add("left out  {} rows, {}: {}",
            format_count(group.count),
            reason,
            escape_controls(group.example));
    }
    for (const std::string& device : devices) {
        add("device    {}", device);
    }

    lines.emplace_back();
    add("  {:<20}{:>6}{:>15}{:>12}{:>12}", "", "tau", "tokens a pass", "tokens/s", "speed-up");
    lines.push_back(decoding_line("drafter", drafter, plain));
    lines.push_back(decoding_line("prompt look-up", lookup, plain));
    lines.push_back(decoding_line("plain decoding", plain, plain));
    add("tau: tokens that one pass of the target gives, drafts that are kept and one of its own "
        "(1 to {})",
        config.block_size);

    lines.emplace_back();
    std::string slots = fmt::format("{:<22}", "share of rounds");
    for (std::int64_t k = 1; k < config.block_size; ++k) {
        slots += fmt::format("{:>5}", k);
    }
    lines.push_back(slots);
    lines.push_back(shares_line("slot kept, drafter", drafter.acceptance.kept_by_slot()));
    lines.push_back(shares_line("slot kept, look-up", lookup.acceptance.kept_by_slot()));
    lines.push_back(shares_line("slot right, drafter", drafter.acceptance.right_by_slot()));
    if (written || answers) {
        lines.emplace_back(
            "the drafter as training judges it, at every token instead of at the rounds'");
    }
    if (written) {
        lines.push_back(shares_line("on these texts", written->right_by_slot));
    }
    if (answers) {
        lines.push_back(shares_line("on the data's answers", answers->right_by_slot));
    }

    add_groups("category", categories, lines);
    add_groups("mode", modes, lines);

    lines.emplace_back();
    if (greedy) {
        add("checked   {} tokens are those of plain decoding, token by token; {} of {} texts "
            "parted "
            "at a tie of two logits",
            format_count(greedy->tokens),
            greedy->ties.size(),
            greedy->texts);
    }
    if (written) {
        add("checked   {} of {} rounds kept what the forward of training has right; its tau on "
            "these texts is {:.2f}",
            format_count(agreement.equal),
            format_count(agreement.rounds),
            written->walked_tau);
    }
    if (answers) {
        add("expected  tau {:.2f} if the target wrote the data's own answers ({} of them)",
            answers->walked_tau,
            answers->texts);
    }
    for (const std::string& warning : warnings) {
        add("warning: {}", escape_controls(warning));
    }
    for (const ShownText& text : shown) {
        lines.emplace_back();
        const std::vector<std::string> more = train::to_lines(text);
        lines.insert(lines.end(), more.begin(), more.end());
    }
    return lines;
}

}  // namespace dflash::train
