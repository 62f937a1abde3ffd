// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/random.hpp>
#include <dflash/core/settings.hpp>
#include <dflash/core/text.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdexcept>
#include <unordered_map>

namespace dflash {
namespace {

// A TOML float needs a point or an exponent, or it would read back as an integer.
std::string number_text(double value) {
    std::string text = fmt::format("{}", value);
    if (text.find_first_of(".en") == std::string::npos) {
        text += ".0";
    }
    return text;
}

std::string toml_string(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20 || byte == 0x7f) {
            out += fmt::format("\\u{:04x}", byte);
        } else {
            out += c;
        }
    }
    return out + "\"";
}

template <class T>
struct Codec;

template <>
struct Codec<bool> {
    static constexpr const char* kType = "true or false";

    static bool read(const SettingValue& v) { return std::get<bool>(v); }

    static SettingValue write(bool v) { return v; }
};

template <>
struct Codec<std::int64_t> {
    static constexpr const char* kType = "integer";

    static std::int64_t read(const SettingValue& v) { return std::get<std::int64_t>(v); }

    static SettingValue write(std::int64_t v) { return v; }
};

double read_number(const SettingValue& v) {
    if (const auto* integer = std::get_if<std::int64_t>(&v)) {
        return static_cast<double>(*integer);
    }
    return std::get<double>(v);
}

template <>
struct Codec<double> {
    static constexpr const char* kType = "number";

    static double read(const SettingValue& v) { return read_number(v); }

    static SettingValue write(double v) { return v; }
};

template <>
struct Codec<std::string> {
    static constexpr const char* kType = "text";

    static std::string read(const SettingValue& v) { return std::get<std::string>(v); }

    static SettingValue write(const std::string& v) { return v; }
};

template <>
struct Codec<Duration> {
    static constexpr const char* kType = "time";

    static Duration read(const SettingValue& v) {
        const auto duration = parse_duration(std::get<std::string>(v));
        if (!duration) {
            throw std::bad_variant_access();
        }
        return *duration;
    }

    static SettingValue write(Duration v) { return to_string(v); }
};

template <>
struct Codec<std::vector<std::int64_t>> {
    static constexpr const char* kType = "list of integers";

    static std::vector<std::int64_t> read(const SettingValue& v) {
        return std::get<std::vector<std::int64_t>>(v);
    }

    static SettingValue write(const std::vector<std::int64_t>& v) { return v; }
};

template <>
struct Codec<std::vector<double>> {
    static constexpr const char* kType = "list of numbers";

    static std::vector<double> read(const SettingValue& v) {
        if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&v)) {
            return {integers->begin(), integers->end()};
        }
        return std::get<std::vector<double>>(v);
    }

    static SettingValue write(const std::vector<double>& v) { return v; }
};

template <class T>
struct Codec<std::optional<T>> {
    static constexpr const char* kType = Codec<T>::kType;

    static std::optional<T> read(const SettingValue& v) {
        if (std::holds_alternative<std::monostate>(v)) {
            return std::nullopt;
        }
        return Codec<T>::read(v);
    }

    static SettingValue write(const std::optional<T>& v) {
        return v ? Codec<T>::write(*v) : SettingValue(std::monostate{});
    }
};

std::vector<double> numbers_of(const SettingValue& value) {
    if (const auto* integer = std::get_if<std::int64_t>(&value)) {
        return {static_cast<double>(*integer)};
    }
    if (const auto* number = std::get_if<double>(&value)) {
        return {*number};
    }
    if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&value)) {
        return {integers->begin(), integers->end()};
    }
    if (const auto* numbers = std::get_if<std::vector<double>>(&value)) {
        return *numbers;
    }
    return {};
}

bool within(const SettingCheck& check, const SettingValue& value, bool is_time) {
    std::vector<double> numbers = numbers_of(value);
    if (const auto* text = std::get_if<std::string>(&value)) {
        if (!check.one_of.empty() &&
            std::find(check.one_of.begin(), check.one_of.end(), *text) == check.one_of.end()) {
            return false;
        }
        if (is_time) {
            numbers.push_back(parse_duration(*text)->seconds);
        }
    }
    return std::all_of(numbers.begin(), numbers.end(), [&](double n) {
        return std::isfinite(n) && !(check.at_least && n < *check.at_least) &&
               !(check.at_most && n > *check.at_most) && !(check.above && n <= *check.above);
    });
}

}  // namespace

std::optional<Duration> parse_duration(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || !std::isfinite(value) || value < 0) {
        return std::nullopt;
    }
    std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    while (unit.starts_with(' ')) {
        unit.remove_prefix(1);
    }
    if (unit == "ms") {
        return Duration{value / 1000};
    }
    if (unit == "s") {
        return Duration{value};
    }
    if (unit == "min") {
        return Duration{value * 60};
    }
    if (unit == "h") {
        return Duration{value * 3600};
    }
    if (unit == "d") {
        return Duration{value * 86400};
    }
    return std::nullopt;
}

std::string to_string(Duration duration) {
    const double s = duration.seconds;
    constexpr std::pair<double, const char*> kUnits[] = {
        {86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    for (const auto& [size, unit] : kUnits) {
        const double count = s / size;
        if (s >= size && count == std::floor(count) && count * size == s) {
            return fmt::format("{}{}", count, unit);
        }
    }
    if (s > 0 && s < 1 && s * 1000 / 1000 == s) {
        return fmt::format("{}ms", s * 1000);
    }
    return fmt::format("{}s", s);
}

std::string to_toml(const SettingValue& value) {
    struct Writer {
        std::string operator()(std::monostate) const { return "(by rule)"; }

        std::string operator()(bool v) const { return v ? "true" : "false"; }

        std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }

        std::string operator()(double v) const { return number_text(v); }

        std::string operator()(const std::string& v) const { return toml_string(v); }

        std::string operator()(const std::vector<std::int64_t>& v) const {
            return fmt::format("[{}]", fmt::join(v, ", "));
        }

        std::string operator()(const std::vector<double>& v) const {
            std::vector<std::string> texts;
            std::transform(v.begin(), v.end(), std::back_inserter(texts), number_text);
            return fmt::format("[{}]", fmt::join(texts, ", "));
        }
    };

    return std::visit(Writer{}, value);
}

std::string Setting::limits() const {
    std::vector<std::string> parts;
    if (!check.one_of.empty()) {
        parts.push_back(fmt::format("one of {}", fmt::join(check.one_of, ", ")));
    }
    if (check.at_least && check.at_most) {
        parts.push_back(fmt::format("{} to {}", *check.at_least, *check.at_most));
    } else if (check.at_least) {
        parts.push_back(fmt::format("{} or more", *check.at_least));
    } else if (check.above && check.at_most) {
        parts.push_back(fmt::format("above {}, at most {}", *check.above, *check.at_most));
    } else if (check.above) {
        parts.push_back(fmt::format("above {}", *check.above));
    } else if (check.at_most) {
        parts.push_back(fmt::format("at most {}", *check.at_most));
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

void Setting::assign(const SettingValue& value, SettingOrigin from, std::string_view at) {
    const std::string limits_text = limits();
    std::string expected = type;
    if (type == "time") {
        expected = "a time with a unit, as in \"90s\", \"30min\" or \"2h\"";
    }
    if (!limits_text.empty()) {
        expected += ", " + limits_text;
    }
    const auto reject = [&] {
        throw Error(ErrorKind::Config,
                    {.what = fmt::format("{}: got {}, expected {}", name, to_toml(value), expected),
                     .where = std::string(at),
                     .cause = {},
                     .hint = {}});
    };
    const SettingValue before = get_();
    try {
        set_(value);
    } catch (const std::bad_variant_access&) {
        reject();
    }
    if (!within(check, get_(), type == "time")) {
        set_(before);
        reject();
    }
    origin = from;
    place = std::string(at);
}

template <class T>
void SettingList::add(std::string name, T& field, std::string help, SettingCheck check) {
    Setting setting;
    setting.name = std::move(name);
    setting.type = Codec<T>::kType;
    setting.help = std::move(help);
    setting.check = std::move(check);
    setting.get_ = [&field] { return Codec<T>::write(field); };
    setting.set_ = [&field](const SettingValue& value) { field = Codec<T>::read(value); };
    setting.default_text = to_toml(setting.get_());
    DFLASH_CHECK(std::none_of(settings_.begin(),
                              settings_.end(),
                              [&](const Setting& s) { return s.name == setting.name; }),
                 "setting {} is declared twice",
                 setting.name);
    settings_.push_back(std::move(setting));
}

template void SettingList::add(std::string, bool&, std::string, SettingCheck);
template void SettingList::add(std::string, std::int64_t&, std::string, SettingCheck);
template void SettingList::add(std::string, double&, std::string, SettingCheck);
template void SettingList::add(std::string, std::string&, std::string, SettingCheck);
template void SettingList::add(std::string, Duration&, std::string, SettingCheck);
template void SettingList::add(std::string, std::vector<std::int64_t>&, std::string, SettingCheck);
template void SettingList::add(std::string, std::vector<double>&, std::string, SettingCheck);
template void SettingList::add(std::string, std::optional<bool>&, std::string, SettingCheck);
template void SettingList::add(std::string,
                               std::optional<std::int64_t>&,
                               std::string,
                               SettingCheck);
template void SettingList::add(std::string, std::optional<double>&, std::string, SettingCheck);
template void SettingList::add(std::string, std::optional<std::string>&, std::string, SettingCheck);
template void SettingList::add(std::string, std::optional<Duration>&, std::string, SettingCheck);
template void SettingList::add(std::string,
                               std::optional<std::vector<std::int64_t>>&,
                               std::string,
                               SettingCheck);

Setting& SettingList::find(std::string_view name, std::string_view place) {
    const auto found = std::find_if(
        settings_.begin(), settings_.end(), [&](const Setting& s) { return s.name == name; });
    if (found != settings_.end()) {
        return *found;
    }
    std::string hint = "dflash train --help-settings lists all settings";
    if (const auto ours = foreign_name(name)) {
        hint = fmt::format("dflash calls it {}", *ours);
    } else {
        std::vector<std::string> names;
        for (const Setting& s : settings_) {
            names.push_back(s.name);
        }
        if (const auto near = nearest_name(name, names)) {
            hint = fmt::format("Did you mean {}?", *near);
            hint.pop_back();
        }
    }
    throw Error(ErrorKind::Config,
                {.what = fmt::format("unknown setting {}", quote(name)),
                 .where = std::string(place),
                 .cause = {},
                 .hint = hint});
}

std::string SettingList::dump() const {
    std::string out;
    std::string section;
    for (const Setting& s : settings_) {
        const std::size_t dot = s.name.find('.');
        DFLASH_CHECK(dot != std::string::npos, "setting {} has no section", s.name);
        if (s.name.substr(0, dot) != section) {
            section = s.name.substr(0, dot);
            out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
        }
        const bool unset = std::holds_alternative<std::monostate>(s.value());
        out += fmt::format(
            "{}{} = {}\n", unset ? "# " : "", s.name.substr(dot + 1), to_toml(s.value()));
    }
    return out;
}

std::uint64_t SettingList::maths_hash() const {
    std::string text;
    for (const Setting& s : settings_) {
        if (s.check.maths) {
            text += fmt::format("{}={}\n", s.name, to_toml(s.value()));
        }
    }
    return stable_hash(text.data(), text.size());
}

std::optional<std::string> foreign_name(std::string_view name) {
    std::string key(name);
    while (key.starts_with('-')) {
        key.erase(0, 1);
    }
    std::replace(key.begin(), key.end(), '-', '_');
    const std::size_t dot = key.rfind('.');
    if (dot != std::string::npos) {
        key = key.substr(dot + 1);
    }
    // Spellings of SpecForge, speculators, TorchSpec, Automodel, Model-Optimizer, AngelSlim and
    // DeepSpec.
    static const std::unordered_map<std::string, std::string> our_names = {
        {"target_model_path", "--target"},
        {"target_model_name_or_path", "--target"},
        {"verifier_name_or_path", "--target"},
        {"model_name_or_path", "--target"},
        {"draft_checkpoint_path", "--init"},
        {"from_pretrained", "--init"},
        {"draft_model_config", "--init"},
        {"draft_config", "--init"},
        {"train_data_path", "--data"},
        {"prompts_path", "--data"},
        {"data_path", "--data"},
        {"eval_data_path", "--eval-data"},
        {"output_dir", "--output"},
        {"save_path", "--output"},
        {"resume_from", "--resume"},
        {"resume_from_checkpoint", "--resume"},
        {"learning_rate", "train.lr (--lr)"},
        {"num_epochs", "train.epochs (--epochs)"},
        {"num_train_epochs", "train.epochs (--epochs)"},
        {"max_num_steps", "train.max_steps"},
        {"total_steps", "train.max_steps"},
        {"warmup_ratio", "train.warmup_fraction"},
        {"max_grad_norm", "train.clip"},
        {"clip_grad_norm", "train.clip"},
        {"lr_scheduler", "train.schedule"},
        {"lr_scheduler_type", "train.schedule"},
        {"lr_decay_style", "train.schedule"},
        {"scheduler_type", "train.schedule"},
        {"batch_size", "train.rows_per_step"},
        {"global_batch_size", "train.rows_per_step"},
        {"per_device_train_batch_size", "train.rows_per_step"},
        {"accumulation_steps", "train.rows_per_step"},
        {"gradient_accumulation_steps", "train.rows_per_step"},
        {"adam_beta1", "train.betas"},
        {"adam_beta2", "train.betas"},
        {"num_anchors", "draft.anchors (--anchors)"},
        {"max_anchors", "draft.anchors (--anchors)"},
        {"dflash_num_anchors", "draft.anchors (--anchors)"},
        {"draft_block_size", "draft.block_size (--block-size)"},
        {"dflash_block_size", "draft.block_size (--block-size)"},
        {"num_draft_layers", "draft.num_layers (--layers)"},
        {"draft_num_hidden_layers", "draft.num_layers (--layers)"},
        {"num_hidden_layers", "draft.num_layers (--layers)"},
        {"loss_decay_gamma", "train.loss_decay_gamma"},
        {"dflash_decay_gamma", "train.loss_decay_gamma"},
        {"dflash_loss_decay_gamma", "train.loss_decay_gamma"},
        {"dflash_loss_decay_factor", "train.loss_decay_gamma"},
        {"loss_type", "train.loss_weights"},
        {"dpace_loss_alpha", "train.dpace_alpha"},
        {"total_seq_len", "data.row_tokens"},
        {"max_seq_length", "data.max_length (--max-length)"},
        {"seq_length", "data.max_length (--max-length)"},
        {"model_max_length", "data.max_length (--max-length)"},
        {"training_seq_len", "data.max_length (--max-length)"},
        {"save_interval", "checkpoint.every"},
        {"save_steps", "checkpoint.every"},
        {"checkpoint_freq", "checkpoint.every"},
        {"eval_interval", "eval.every"},
        {"log_interval", "report.line_every"},
        {"logging_steps", "report.line_every"},
        {"log_freq", "report.line_every"},
        {"max_checkpoints", "checkpoint.keep"},
        {"mask_token_id", "draft.mask_token_id"},
        {"dflash_mask_token_id", "draft.mask_token_id"},
        {"target_layer_ids", "draft.target_layer_ids"},
        {"chat_template", "data.chat_format"},
        {"cache_dir", "cache.dir"},
        {"report_to", "nothing: metrics.jsonl and TensorBoard events are always written"},
        {"attention_backend", "nothing: there is one attention implementation per device"},
    };
    const auto found = our_names.find(key);
    if (found == our_names.end()) {
        return std::nullopt;
    }
    return found->second;
}

}  // namespace dflash
