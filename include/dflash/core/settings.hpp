// SPDX-License-Identifier: Apache-2.0
// Settings, declared once. A component's settings are a plain struct with in-class defaults and one
// member
//
//     void declare(SettingList& list) { list.add("train.lr", lr, "peak learning rate", {.above =
//     0}); ... }
//
// From that list come reading (dflash.toml, --set), checking, --help, the dump into the run folder,
// the table in docs/configuration.md and the hash that decides whether two runs are the same.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace dflash {

/// A length of time; settings of this type are written as strings with a unit: "500ms", "10s",
/// "30min", "2h".
struct Duration {
    double seconds = 0;

    friend bool operator==(const Duration&, const Duration&) = default;
};

/// Parses a time with a unit; nothing if it is not one.
std::optional<Duration> parse_duration(std::string_view text);

/// Shortest form with a unit that parses to the same value.
std::string to_string(Duration duration);

/// A value as a configuration file can hold it; monostate means "not set" (a setting whose default
/// is by rule).
using SettingValue = std::variant<std::monostate,
                                  bool,
                                  std::int64_t,
                                  double,
                                  std::string,
                                  std::vector<std::int64_t>,
                                  std::vector<double>>;

/// The value in TOML notation; "(by rule)" for monostate.
std::string to_toml(const SettingValue& value);

/// Limits of a value, all optional.
struct SettingCheck {
    std::optional<double> at_least{};
    std::optional<double> at_most{};
    std::optional<double> above{};
    std::vector<std::string> one_of{};  ///< for strings
    std::string unit{};                 ///< for help: "tokens", "rows", "s"
    bool maths = true;  ///< part of what the run computes: must be equal when a run is resumed
};

/// Where a value came from, lowest to highest priority.
enum class SettingOrigin { Default, File, SetOption, NamedOption };

/// One declared setting, bound to a field of a component's struct. Copies refer to the same field.
class Setting {
  public:
    std::string name;
    std::string type;  ///< "integer", "number", "text", "true or false", "time", "list of
                       ///< integers", "list of numbers"
    std::string help;
    SettingCheck check;
    std::string default_text;  ///< TOML notation of the default, or "(by rule)"
    SettingOrigin origin = SettingOrigin::Default;
    std::string place;  ///< "dflash.toml:3:1", "--set", "--lr"

    /// Assigns after checking type and limits. Throws Error{Config} naming the setting, the value
    /// got, what is expected, and `place`.
    void assign(const SettingValue& value, SettingOrigin from, std::string_view at);

    /// The current value.
    SettingValue value() const { return get_(); }

    bool is_default() const { return to_toml(value()) == default_text; }

    /// "1 or more", "above 0", "one of cosine, wsd": for help and messages; empty without limits.
    std::string limits() const;

  private:
    friend class SettingList;
    std::function<SettingValue()> get_;
    std::function<void(const SettingValue&)>
        set_;  // throws std::invalid_argument with the expected type
};

/// All settings of a program, in the order of declaration.
class SettingList {
  public:
    /// Declares a setting bound to `field`, which must outlive the list; its value is the default.
    /// T is bool, int64_t, double, std::string, Duration, vector<int64_t>, vector<double>, or an
    /// optional of one of them (unset = by rule).
    template <class T>
    void add(std::string name, T& field, std::string help, SettingCheck check = {});

    /// The setting of that name. Throws Error{Config} with the nearest name, or with ours if `name`
    /// is another trainer's spelling ("num_anchors" -> draft.anchors).
    Setting& find(std::string_view name, std::string_view place);

    std::vector<Setting>& all() { return settings_; }

    const std::vector<Setting>& all() const { return settings_; }

    /// TOML text with one section per prefix; settings that are not set are written as comments.
    /// Reads back to the same values.
    std::string dump() const;

    /// Hash of all settings that are part of the maths.
    std::uint64_t maths_hash() const;

  private:
    std::vector<Setting> settings_;
};

/// Our name for a setting or option of another trainer ("learning_rate", "--num-anchors"), if it is
/// one we know.
std::optional<std::string> foreign_name(std::string_view name);

}  // namespace dflash
