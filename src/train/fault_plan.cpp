// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/train/fault_plan.hpp>

#include <charconv>
#include <cstdlib>
#include <fmt/format.h>
#include <memory>
#include <unistd.h>
#include <utility>

namespace dflash::train {
namespace {

std::vector<Fault>& plan() {
    // Threads that hang by our doing read it until the process ends.
    static auto* const faults = new std::vector<Fault>();
    return *faults;
}

[[noreturn]] void hang() {
    for (;;) {
        ::pause();
    }
}

void observe(const Activity& activity, const char* what, std::int64_t number) {
    for (const Fault& fault : plan()) {
        if (fault.what != what || (fault.number && *fault.number != number) ||
            (fault.who && *fault.who != activity.who())) {
            continue;
        }
        if (!fault.kind) {
            hang();
        }
        throw Error(*fault.kind,
                    {.what = fault_text(fault), .where = activity.who(), .cause = {}, .hint = {}});
    }
}

std::optional<ErrorKind> kind_named(std::string_view name) {
    for (const ErrorKind kind : {ErrorKind::Config,
                                 ErrorKind::Data,
                                 ErrorKind::Device,
                                 ErrorKind::Compile,
                                 ErrorKind::Numeric,
                                 ErrorKind::Storage,
                                 ErrorKind::Internal}) {
        if (name == to_string(kind)) {
            return kind;
        }
    }
    return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(' ');
    const std::size_t end = text.find_last_not_of(' ');
    return begin == std::string_view::npos ? "" : text.substr(begin, end - begin + 1);
}

std::optional<std::int64_t> integer(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                    : std::nullopt;
}

Fault parse_fault(std::string_view text) {
    Fault fault;
    const std::size_t space = text.find(' ');
    const std::string_view action = text.substr(0, space);
    std::string_view rest = space == std::string_view::npos ? "" : trimmed(text.substr(space));
    fault.kind = kind_named(action);
    if ((!fault.kind && action != "hang") || rest.empty()) {
        throw Error(
            ErrorKind::Config,
            {.what = fmt::format("a fault: got {}, expected \"hang WHAT [NUMBER] [on WHO]\" "
                                 "or the kind of an error in place of hang",
                                 quote(std::string(text))),
             .where = "DFLASH_TEST_FAULTS",
             .cause = {},
             .hint = {}});
    }
    if (const std::size_t on = rest.rfind(" on "); on != std::string_view::npos) {
        fault.who = std::string(trimmed(rest.substr(on + 4)));
        rest = trimmed(rest.substr(0, on));
    }
    if (const std::size_t last = rest.rfind(' '); last != std::string_view::npos) {
        fault.number = integer(rest.substr(last + 1));
        if (fault.number) {
            rest = trimmed(rest.substr(0, last));
        }
    }
    fault.what = std::string(rest);
    return fault;
}

}  // namespace

std::vector<Fault> parse_faults(std::string_view text) {
    std::vector<Fault> faults;
    while (!text.empty()) {
        const std::size_t end = text.find(';');
        if (const std::string_view one = trimmed(text.substr(0, end)); !one.empty()) {
            faults.push_back(parse_fault(one));
        }
        text = end == std::string_view::npos ? "" : text.substr(end + 1);
    }
    return faults;
}

std::string fault_text(const Fault& fault) {
    return fmt::format("a fault for a test in {}{}",
                       fault.what,
                       fault.number ? fmt::format(" {}", *fault.number) : "");
}

void set_faults(std::vector<Fault> faults) {
    const bool any = !faults.empty();
    Activity::set_observer(nullptr);
    plan() = std::move(faults);
    Activity::set_observer(any ? observe : nullptr);
}

void set_faults_from_environment() {
    if (const char* text = std::getenv("DFLASH_TEST_FAULTS")) {
        log_warning("DFLASH_TEST_FAULTS is set: this run is made to fail ({})", text);
        set_faults(parse_faults(text));
    }
}

}  // namespace dflash::train
