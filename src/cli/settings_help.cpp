// SPDX-License-Identifier: Apache-2.0
#include <dflash/cli/settings_help.hpp>
#include <dflash/train/settings.hpp>

#include <fmt/format.h>

namespace dflash::cli {
namespace {

std::string kind_of(const Setting& setting) {
    std::string kind = setting.type;
    const std::string limits = setting.limits();
    if (!limits.empty()) {
        kind += ", " + limits;
    }
    if (!setting.check.unit.empty()) {
        kind += ", " + setting.check.unit;
    }
    return kind;
}

}  // namespace

std::string settings_help() {
    train::Settings settings;
    const SettingList list = settings.list();
    std::string out;
    for (const Setting& setting : list.all()) {
        out += fmt::format("{} = {}\n    {} ({})\n",
                           setting.name,
                           setting.default_text,
                           setting.help,
                           kind_of(setting));
    }
    return out;
}

std::string settings_table() {
    train::Settings settings;
    const SettingList list = settings.list();
    std::string out = "| setting | default | values | meaning |\n| --- | --- | --- | --- |\n";
    for (const Setting& setting : list.all()) {
        out += fmt::format("| `{}` | `{}` | {} | {} |\n",
                           setting.name,
                           setting.default_text,
                           kind_of(setting),
                           setting.help);
    }
    return out;
}

}  // namespace dflash::cli
