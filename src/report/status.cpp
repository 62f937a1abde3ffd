// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/report/status.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <limits>
#include <utility>

namespace dflash::report {
namespace {

using io::Json;

/// Rises when a reader of the former schema would misread the file; new keys do not matter.
constexpr std::int64_t kSchema = 1;

constexpr std::array<std::pair<RunState, std::string_view>, 9> kStates = {{
    {RunState::Starting, "starting"},
    {RunState::Answering, "answering"},
    {RunState::Training, "training"},
    {RunState::Evaluating, "evaluating"},
    {RunState::Saving, "saving"},
    {RunState::Stopping, "stopping"},
    {RunState::Done, "done"},
    {RunState::Stopped, "stopped"},
    {RunState::Failed, "failed"},
}};

constexpr std::array kErrorKinds = {ErrorKind::Config,
                                    ErrorKind::Data,
                                    ErrorKind::Device,
                                    ErrorKind::Compile,
                                    ErrorKind::Numeric,
                                    ErrorKind::Storage,
                                    ErrorKind::Internal,
                                    ErrorKind::Cancelled};

Json text(std::string value) {
    return Json::string(std::move(value));
}

Json number(std::optional<double> value) {
    return value ? Json::number(*value) : Json();
}

Json integer(std::optional<std::int64_t> value) {
    return value ? Json::integer(*value) : Json();
}

Json to_json(const StepStatus& step) {
    return Json::object({{"step", integer(step.step)},
                         {"epoch", integer(step.epoch)},
                         {"tokens", integer(step.tokens)},
                         {"loss", number(step.loss)},
                         {"accuracy", number(step.accuracy)},
                         {"lr", number(step.learning_rate)},
                         {"grad_norm", number(step.gradient_norm)},
                         {"fraction_done", number(step.fraction_done)},
                         {"drafter_tokens_per_s", number(step.drafter_tokens_per_s)},
                         {"target_tokens_per_s", number(step.target_tokens_per_s)},
                         {"drafter_waited", number(step.drafter_waited)},
                         {"target_waited", number(step.target_waited)},
                         {"seconds", number(step.seconds)},
                         {"left_s", number(step.left_s)},
                         {"at_s", number(step.at_s)}});
}

Json to_json(const DeviceStatus& device) {
    return Json::object({{"name", text(device.name)},
                         {"role", text(device.role)},
                         {"busy", number(device.busy)},
                         {"tasks", integer(device.tasks)},
                         {"waited", number(device.waited)},
                         {"waits_for", text(device.waits_for)},
                         {"use", number(device.use)},
                         {"memory_used_bytes", integer(device.memory_used_bytes)},
                         {"memory_total_bytes", integer(device.memory_total_bytes)},
                         {"power_w", number(device.power_w)},
                         {"sm_clock_mhz", integer(device.sm_clock_mhz)},
                         {"temperature_c", integer(device.temperature_c)}});
}

Json to_json(const Failure& failure) {
    return Json::object({{"kind", text(std::string(to_string(failure.kind)))},
                         {"what", text(failure.parts.what)},
                         {"where", text(failure.parts.where)},
                         {"cause", text(failure.parts.cause)},
                         {"what_to_do", text(failure.parts.hint)}});
}

std::string utc(double seconds) {
    return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

/// Members of one object, read with its place.
class Reader {
  public:
    Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

    std::string text(std::string_view key) const {
        return json_.optional_string(key, where_).value_or(std::string());
    }

    std::int64_t integer(std::string_view key) const {
        return json_.optional_integer(key, where_).value_or(0);
    }

    std::optional<std::int64_t> any_integer(std::string_view key) const {
        return json_.optional_integer(key, where_);
    }

    /// JSON has no NaN: it is null in the file.
    double number(std::string_view key) const {
        return json_.optional_number(key, where_)
            .value_or(std::numeric_limits<double>::quiet_NaN());
    }

    std::optional<double> any_number(std::string_view key) const {
        return json_.optional_number(key, where_);
    }

    const Json* object(std::string_view key) const {
        const Json* member = json_.find(key);
        return member != nullptr && member->is_object() ? member : nullptr;
    }

    const std::string& where() const { return where_; }

  private:
    const Json& json_;
    std::string where_;
};

StepStatus step_of(const Reader& json) {
    return {.step = json.integer("step"),
            .epoch = json.integer("epoch"),
            .tokens = json.integer("tokens"),
            .loss = json.number("loss"),
            .accuracy = json.number("accuracy"),
            .learning_rate = json.number("lr"),
            .gradient_norm = json.number("grad_norm"),
            .fraction_done = json.number("fraction_done"),
            .drafter_tokens_per_s = json.number("drafter_tokens_per_s"),
            .target_tokens_per_s = json.number("target_tokens_per_s"),
            .drafter_waited = json.number("drafter_waited"),
            .target_waited = json.number("target_waited"),
            .seconds = json.number("seconds"),
            .left_s = json.any_number("left_s"),
            .at_s = json.number("at_s")};
}

DeviceStatus device_of(const Reader& json) {
    return {.name = json.text("name"),
            .role = json.text("role"),
            .busy = json.number("busy"),
            .tasks = json.integer("tasks"),
            .waited = json.number("waited"),
            .waits_for = json.text("waits_for"),
            .use = json.any_number("use"),
            .memory_used_bytes = json.any_integer("memory_used_bytes"),
            .memory_total_bytes = json.any_integer("memory_total_bytes"),
            .power_w = json.any_number("power_w"),
            .sm_clock_mhz = json.any_integer("sm_clock_mhz"),
            .temperature_c = json.any_integer("temperature_c")};
}

Failure failure_of(const Reader& json) {
    const std::string kind = json.text("kind");
    const auto* const found = std::ranges::find_if(
        kErrorKinds, [&](ErrorKind known) { return to_string(known) == kind; });
    return {.kind = found == kErrorKinds.end() ? ErrorKind::Internal : *found,
            .parts = {.what = json.text("what"),
                      .where = json.text("where"),
                      .cause = json.text("cause"),
                      .hint = json.text("what_to_do")}};
}

RunState state_of(const Reader& json) {
    const std::string name = json.text("state");
    const auto* const found =
        std::ranges::find_if(kStates, [&](const auto& state) { return state.second == name; });
    if (found == kStates.end()) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("state: got \"{}\", expected that of a run", name),
                     .where = json.where(),
                     .cause = {},
                     .hint = "The file is written by dflash alone; is it one of another program"});
    }
    return found->first;
}

}  // namespace

std::string_view to_string(RunState state) {
    const auto* const found =
        std::ranges::find_if(kStates, [&](const auto& known) { return known.first == state; });
    return found->second;
}

bool is_live(RunState state) {
    return state != RunState::Done && state != RunState::Stopped && state != RunState::Failed;
}

Json to_json(const RunStatus& status) {
    Json json = Json::object({{"schema", integer(kSchema)},
                              {"state", text(std::string(to_string(status.state)))},
                              {"doing", text(status.doing)},
                              {"background", text(status.background)},
                              {"run", text(status.folder)},
                              {"version", text(status.version)},
                              {"host", text(status.host)},
                              {"pid", integer(status.pid)},
                              {"process_start_ticks", integer(status.process_start_ticks)},
                              {"started_at", text(utc(status.started_s))},
                              {"started_s", number(status.started_s)},
                              {"written_at", text(utc(status.written_s))},
                              {"written_s", number(status.written_s)},
                              {"every_s", number(status.every_s)}});
    if (status.step) {
        json.set("step", to_json(*status.step));
    }
    if (status.held_out) {
        json.set("held_out",
                 Json::object({{"step", integer(status.held_out->step)},
                               {"loss", number(status.held_out->loss)},
                               {"acceptance_length", number(status.held_out->acceptance_length)},
                               {"bigram_acceptance_length",
                                number(status.held_out->bigram_acceptance_length)}}));
    }
    if (status.decoded) {
        json.set("decoded",
                 Json::object({{"step", integer(status.decoded->step)},
                               {"tau", number(status.decoded->tau)},
                               {"first_tau", number(status.decoded->first_tau)},
                               {"lookup_tau", number(status.decoded->lookup_tau)}}));
    }
    if (status.saved) {
        json.set("saved",
                 Json::object({{"step", integer(status.saved->step)},
                               {"at_s", number(status.saved->at_s)}}));
    }
    std::vector<Json> devices;
    for (const DeviceStatus& device : status.devices) {
        devices.push_back(to_json(device));
    }
    json.set("devices", Json::array(std::move(devices)));
    json.set("process_cpu", number(status.process_cpu));
    json.set("process_bytes", integer(status.process_bytes));
    json.set("warnings", integer(status.warnings));
    json.set("last_warning", text(status.last_warning));
    if (status.failure) {
        json.set("failure", to_json(*status.failure));
    }
    if (status.exit_code) {
        json.set("exit_code", integer(*status.exit_code));
    }
    return json;
}

RunStatus status_from_json(const Json& json, const std::string& where) {
    const Reader reader(json, where);
    const std::int64_t schema = json.require_integer("schema", where);
    if (schema > kSchema) {
        throw Error(ErrorKind::Data,
                    {.what = fmt::format("schema: got {}, expected {} or less", schema, kSchema),
                     .where = where,
                     .cause = "a later version of dflash has written the file",
                     .hint = "Use that version to look at it"});
    }
    RunStatus status;
    status.state = state_of(reader);
    status.doing = reader.text("doing");
    status.background = reader.text("background");
    status.folder = reader.text("run");
    status.version = reader.text("version");
    status.host = reader.text("host");
    status.pid = reader.integer("pid");
    status.process_start_ticks = reader.integer("process_start_ticks");
    status.started_s = reader.number("started_s");
    status.written_s = reader.number("written_s");
    status.every_s = reader.number("every_s");
    if (const Json* step = reader.object("step")) {
        status.step = step_of({*step, where + ": step"});
    }
    if (const Json* held_out = reader.object("held_out")) {
        const Reader part(*held_out, where + ": held_out");
        status.held_out = {.step = part.integer("step"),
                           .loss = part.number("loss"),
                           .acceptance_length = part.number("acceptance_length"),
                           .bigram_acceptance_length = part.number("bigram_acceptance_length")};
    }
    if (const Json* decoded = reader.object("decoded")) {
        const Reader part(*decoded, where + ": decoded");
        status.decoded = {.step = part.integer("step"),
                          .tau = part.number("tau"),
                          .first_tau = part.any_number("first_tau"),
                          .lookup_tau = part.number("lookup_tau")};
    }
    if (const Json* saved = reader.object("saved")) {
        const Reader part(*saved, where + ": saved");
        status.saved = {.step = part.integer("step"), .at_s = part.number("at_s")};
    }
    if (const Json* devices = json.find("devices"); devices != nullptr && devices->is_array()) {
        for (const Json& device : devices->items()) {
            status.devices.push_back(device_of({device, where + ": devices"}));
        }
    }
    status.process_cpu = reader.number("process_cpu");
    status.process_bytes = reader.integer("process_bytes");
    status.warnings = reader.integer("warnings");
    status.last_warning = reader.text("last_warning");
    if (const Json* failure = reader.object("failure")) {
        status.failure = failure_of({*failure, where + ": failure"});
    }
    status.exit_code = reader.any_integer("exit_code");
    return status;
}

}  // namespace dflash::report
