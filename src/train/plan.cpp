// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_files.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/kernels/tuned_gemm.hpp>
#include <dflash/model/draft_decoder.hpp>
#include <dflash/model/drafter.hpp>
#include <dflash/target/target_model.hpp>
#include <dflash/tensor/step_graphs.hpp>
#include <dflash/train/plan.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <numeric>
#include <set>

namespace dflash::train {
namespace {

[[noreturn]] void reject(std::string what, std::string hint = {}) {
    throw Error(ErrorKind::Config,
                {.what = std::move(what), .where = {}, .cause = {}, .hint = std::move(hint)});
}

// Bytes of an element of weights and activations: fp32 on the CPU, bf16 on a GPU.
Bytes element_size(const gpu::Device& device) {
    return device.is_cuda() ? 2 : 4;
}

// "0-2,5": positions in the device list.
std::vector<int> parse_positions(const std::string& text, const char* setting, int num_devices) {
    const auto malformed = [&] {
        reject(
            fmt::format("{}: got {}, expected positions in the list of devices such as 0-4 or 0,2",
                        setting,
                        quote(text)));
    };
    std::set<int> positions;
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at != end) {
        int first = 0;
        auto parsed = std::from_chars(at, end, first);
        int last = first;
        if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '-') {
            parsed = std::from_chars(parsed.ptr + 1, end, last);
        }
        if (parsed.ec != std::errc() || last < first || (parsed.ptr != end && *parsed.ptr != ',')) {
            malformed();
        }
        for (int position = first; position <= last; ++position) {
            if (position < 0 || position >= num_devices) {
                reject(fmt::format(
                    "{}: got position {}, expected 0 to {}", setting, position, num_devices - 1));
            }
            positions.insert(position);
        }
        at = parsed.ptr == end ? end : parsed.ptr + 1;
    }
    if (positions.empty()) {
        malformed();
    }
    return {positions.begin(), positions.end()};
}

std::vector<int> range(int first, int count) {
    std::vector<int> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), first);
    return values;
}

Roles split_roles(int targets, int num_devices, std::string reason) {
    return {range(0, targets), range(targets, num_devices - targets), std::move(reason)};
}

// Parameters of the drafter's layers without fc, per layer.
double layer_parameters(const model::DraftConfig& d) {
    const double h = static_cast<double>(d.hidden_size);
    const double q = static_cast<double>(d.num_heads * d.head_dim);
    const double kv = static_cast<double>(d.num_kv_heads * d.head_dim);
    return h * (2 * q + 2 * kv) + 3 * h * static_cast<double>(d.intermediate_size);
}

// Products of gate and up once more.
double recompute_flops(const model::DraftConfig& d, std::int64_t layers, double anchors_per_row) {
    return 2 * 2 * static_cast<double>(d.hidden_size * d.intermediate_size * layers) *
           anchors_per_row * static_cast<double>(d.block_size);
}

// fp32 peak of a core with 256-bit vectors, bf16 dense peak of an H200: only for a first guess of
// the time.
double peak_flops(const gpu::Device& device) {
    return device.is_cuda() ? 790e12 : 60e9;
}

// Prompts go through pieces of the vocabulary's width (for_logit_chunks), twice: sorted for the
// best.
constexpr Bytes kLogitBytesCuda = Bytes{2} * 256 << 20;
constexpr Bytes kLogitBytesCpu = Bytes{2} * 64 << 20;

// Blocks of a text that are judged at a time (eval::TeacherForced).
constexpr std::int64_t kJudgedBlocks = 128;

// Graphs of rounds have memory of their own: buffers of the largest, which the others share, and
// what each gives, states of drafts and residuals of their blocks, of look-up's and of plain ones.
Bytes round_graph_bytes(const PlanInput& in, const AcceptanceNeed& need, at::ScalarType dtype) {
    const std::int64_t B = in.draft.block_size;
    const std::vector<std::int64_t> sizes = tensor::graph_sizes(need.slots);
    const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    return target::activation_bytes(in.target, need.slots * B, dtype) +
           model::DraftDecoder::block_bytes(in.draft, need.slots, B, dtype) +
           rows * 3 * B * in.target.hidden_size * static_cast<Bytes>(c10::elementSize(dtype));
}

// What real decoding adds on a device that has a target, or shares its memory with one.
Bytes acceptance_bytes(const PlanInput& in,
                       const RunPlan& plan,
                       const AcceptanceNeed& need,
                       const DevicePlan& device) {
    const at::ScalarType dtype = compute_dtype(device.device);
    const Bytes element = element_size(device.device);
    const std::int64_t H = in.target.hidden_size;
    Bytes bytes = model::num_parameters(in.draft) * element;
    if (device.has_target) {
        const std::int64_t last_tap =
            *std::max_element(in.draft.target_layer_ids.begin(), in.draft.target_layer_ids.end());
        const std::int64_t other_layers =
            in.target.num_parameters(in.target.num_layers, /*with_ends=*/false) -
            in.target.num_parameters(last_tap + 1, /*with_ends=*/false);
        bytes += (other_layers + H + (in.target.tied ? 0 : in.target.vocab_size * H)) * element;
    }
    const Bytes cached_token =
        target::cache_bytes_per_token(in.target, dtype) +
        2 * in.draft.num_layers() * in.draft.num_kv_heads * in.draft.head_dim * element;
    bytes += need.slots * (need.capacity + in.draft.block_size) * cached_token;
    bytes += in.draft.num_features() * need.pass_tokens * H * element;
    if (!device.has_target || need.pass_tokens > plan.max_row_tokens) {
        bytes += target::activation_bytes(in.target, need.pass_tokens, dtype);
    }
    bytes +=
        model::Drafter::memory_need(in.draft, need.capacity, kJudgedBlocks, element).activations;
    if (!device.device.is_cuda()) {
        return bytes + kLogitBytesCpu;
    }
    return bytes + kLogitBytesCuda + round_graph_bytes(in, need, dtype);
}

bool shares_memory_with_target(const PlanInput& in,
                               const RunPlan& plan,
                               const gpu::Device& device) {
    return std::any_of(plan.roles.targets.begin(), plan.roles.targets.end(), [&](int position) {
        const gpu::Device& other = in.devices[static_cast<std::size_t>(position)];
        return other.kind == device.kind && (!device.is_cuda() || other.ordinal == device.ordinal);
    });
}

DevicePlan plan_device(const PlanInput& in, const RunPlan& plan, const gpu::Device& device) {
    const auto contains = [&](const std::vector<int>& list) {
        return std::find(list.begin(), list.end(), device.position) != list.end();
    };
    const Bytes element = element_size(device);
    DevicePlan result;
    result.device = device;
    result.has_target = contains(plan.roles.targets);
    result.has_drafter = contains(plan.roles.drafters);
    const std::int64_t last_tap =
        *std::max_element(in.draft.target_layer_ids.begin(), in.draft.target_layer_ids.end());
    if (result.has_target) {
        const Bytes embedding = in.target.vocab_size * in.target.hidden_size * element;
        result.target_weights =
            in.target.num_parameters(last_tap + 1, /*with_ends=*/false) * element + embedding;
        result.activations +=
            target::activation_bytes(in.target, plan.max_row_tokens, compute_dtype(device));
        const auto is_elsewhere = [&](int drafter) {
            const gpu::Device& other = in.devices[static_cast<std::size_t>(drafter)];
            return device.is_cuda() && other.ordinal != device.ordinal;
        };
        if (std::any_of(plan.roles.drafters.begin(), plan.roles.drafters.end(), is_elsewhere)) {
            result.activations +=
                in.draft.num_features() * plan.max_row_tokens * in.target.hidden_size * element;
        }
    }
    if (result.has_drafter) {
        const model::HeadPrecision precision =
            model::head_precision(in.settings.draft.head_precision);
        const auto need_with = [&](std::int64_t recompute_layers) {
            return model::Drafter::memory_need(in.draft,
                                               plan.max_row_tokens,
                                               plan.max_row_blocks,
                                               element,
                                               recompute_layers,
                                               precision);
        };
        const auto need = need_with(plan.recompute_layers);
        result.recompute_saves = need_with(0).activations - need.activations;
        const std::int64_t parameters = model::num_parameters(in.draft);
        // Two moments in fp32; master weights are memory of their own only where the compute dtype
        // is not fp32.
        const Bytes optimizer = parameters * (element == 4 ? 8 : 12);
        const Bytes ends =
            (in.target.tied ? 1 : 2) * in.target.vocab_size * in.target.hidden_size * element;
        result.float8_head =
            model::float8_head_bytes(in.target.vocab_size, in.target.hidden_size, precision);
        result.draft_state = need.weights + optimizer + ends + result.float8_head;
        result.activations += need.activations;
        // With a head in 8 bits the need has it already.
        if (device.is_cuda() && in.settings.train.products != "torch" &&
            precision == model::HeadPrecision::Compute) {
            result.activations += kernels::TunedGemm::kWorkspaceBytes;
        }
        const auto slots_here = plan.num_slots / static_cast<int>(plan.roles.drafters.size());
        result.feature_slots = slots_here * in.draft.num_features() * plan.max_row_tokens *
                               in.draft.hidden_size * element;
    }
    if (plan.acceptance && shares_memory_with_target(in, plan, device)) {
        result.acceptance = acceptance_bytes(in, plan, *plan.acceptance, result);
    }
    return result;
}

// Devices that share memory (the same GPU several times, or all CPU devices) are judged together.
void check_memory(const PlanInput& in, const RunPlan& plan) {
    std::map<std::pair<gpu::DeviceKind, int>, std::pair<Bytes, gpu::Device>> needs;
    for (const DevicePlan& d : plan.devices) {
        const int physical = d.device.is_cuda() ? d.device.ordinal : 0;
        auto& [bytes, device] = needs[{d.device.kind, physical}];
        bytes += d.needed();
        device = d.device;
    }
    // The buffers of saves are the machine's memory, wherever the drafter is.
    const bool on_cpu = needs.contains({gpu::DeviceKind::Cpu, 0});
    auto& [host_bytes, host] = needs[{gpu::DeviceKind::Cpu, 0}];
    host_bytes += plan.save_buffers;
    if (!on_cpu) {
        host = {.kind = gpu::DeviceKind::Cpu, .name = "host"};
    }
    for (const auto& [key, need] : needs) {
        const auto& [bytes, device] = need;
        const Bytes free_bytes = in.memory(device).free_bytes;
        if (bytes > free_bytes) {
            std::vector<std::string> parts;
            for (const DevicePlan& d : plan.devices) {
                if (d.device.kind == key.first &&
                    (!d.device.is_cuda() || d.device.ordinal == key.second)) {
                    parts.push_back(fmt::format(
                        "{}: target {}, drafter {}, activations {}, feature slots {}{}",
                        d.device.name,
                        format_bytes(d.target_weights),
                        format_bytes(d.draft_state),
                        format_bytes(d.activations),
                        format_bytes(d.feature_slots),
                        d.acceptance > 0 ? ", real decoding " + format_bytes(d.acceptance) : ""));
                }
            }
            if (!device.is_cuda()) {
                parts.push_back(
                    fmt::format("buffers of saves {}", format_bytes(plan.save_buffers)));
            }
            reject(fmt::format("the plan does not fit: {} needs {}, but {} are free ({})",
                               device.is_cuda() ? device.name : "the CPU",
                               format_bytes(bytes),
                               format_bytes(free_bytes),
                               fmt::join(parts, "; ")),
                   "Use more devices, train.recompute_layers, a smaller data.row_tokens or "
                   "data.row_anchors, or a smaller target");
        }
    }
}

// Bytes of the checkpoints and drafts that a run has saved; 0 for a run that is new.
Bytes saved_bytes(const std::string& folder) {
    Bytes bytes = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        if (!entry.path().filename().string().starts_with("step-")) {
            continue;
        }
        for (const auto& file :
             std::filesystem::recursive_directory_iterator(entry.path(), error)) {
            if (file.is_regular_file(error)) {
                bytes += static_cast<Bytes>(file.file_size(error));
            }
        }
    }
    return bytes;
}

}  // namespace

Roles choose_roles(const RunSettings& settings, int num_devices, const RowCost& cost) {
    const bool lists = !settings.target_gpus.empty() || !settings.draft_gpus.empty();
    if (lists && !settings.split.empty()) {
        reject("run.split and run.target_gpus/run.draft_gpus are both set", "Use one of the two");
    }
    if (lists) {
        if (settings.target_gpus.empty() || settings.draft_gpus.empty()) {
            reject("run.target_gpus and run.draft_gpus: got one, expected both",
                   "The two lists may overlap");
        }
        return {parse_positions(settings.target_gpus, "run.target_gpus", num_devices),
                parse_positions(settings.draft_gpus, "run.draft_gpus", num_devices),
                "as given"};
    }
    if (!settings.split.empty()) {
        int targets = 0;
        int drafters = 0;
        const char* const end = settings.split.data() + settings.split.size();
        const auto first = std::from_chars(settings.split.data(), end, targets);
        const bool plus = first.ec == std::errc() && first.ptr != end && *first.ptr == '+';
        const auto second = plus ? std::from_chars(first.ptr + 1, end, drafters) : first;
        if (!plus || second.ec != std::errc() || second.ptr != end || targets < 1 || drafters < 1) {
            reject(
                fmt::format("run.split: got {}, expected T+D such as 5+3", quote(settings.split)));
        }
        if (num_devices == 1 && targets == 1 && drafters == 1) {
            return {{0}, {0}, "as given; one device does both"};
        }
        if (targets + drafters != num_devices) {
            reject(fmt::format("run.split: got {} = {} devices, but --gpus lists {}",
                               settings.split,
                               targets + drafters,
                               num_devices),
                   "To put both roles on one device use --target-gpus and --draft-gpus");
        }
        return split_roles(targets, num_devices, "as given");
    }
    if (num_devices == 1) {
        return {{0}, {0}, "one device does both"};
    }
    int best = 1;
    double best_time = std::numeric_limits<double>::infinity();
    for (int targets = 1; targets < num_devices; ++targets) {
        const double time =
            std::max(cost.target_flops / targets, cost.draft_flops / (num_devices - targets));
        if (time < best_time) {
            best_time = time;
            best = targets;
        }
    }
    const double share = cost.target_flops / (cost.target_flops + cost.draft_flops);
    return split_roles(
        best,
        num_devices,
        fmt::format("the target's forward is {:.0f} % of the work of a row", 100 * share));
}

RowCost row_cost(const target::TargetConfig& target,
                 const model::DraftConfig& draft,
                 double tokens_per_row,
                 double documents_per_row,
                 double anchors_per_row) {
    const double tokens_per_document = tokens_per_row / std::max(1.0, documents_per_row);
    const std::int64_t last_tap =
        *std::max_element(draft.target_layer_ids.begin(), draft.target_layer_ids.end());
    const auto layers = static_cast<double>(last_tap + 1);
    RowCost cost;
    const double target_layer_weights =
        static_cast<double>(target.num_parameters(last_tap + 1, /*with_ends=*/false));
    const double target_attention = 4.0 * static_cast<double>(target.num_heads * target.head_dim) *
                                    (tokens_per_document / 2) * layers;
    cost.target_flops = tokens_per_row * (2 * target_layer_weights + target_attention);

    const double h = static_cast<double>(draft.hidden_size);
    const double kv = static_cast<double>(draft.num_kv_heads * draft.head_dim);
    const double q = static_cast<double>(draft.num_heads * draft.head_dim);
    const double num_layers = static_cast<double>(draft.num_layers());
    const double block_rows = anchors_per_row * static_cast<double>(draft.block_size);
    const double head_rows = anchors_per_row * static_cast<double>(draft.block_size - 1);
    const double fc = 2 * 2 * static_cast<double>(draft.num_features()) * h * h * tokens_per_row;
    const double context_kv = 3 * 2 * 2 * h * kv * num_layers * tokens_per_row;
    const double blocks = 3 * 2 * layer_parameters(draft) * num_layers * block_rows;
    const double mean_context = tokens_per_document / 2 + static_cast<double>(draft.block_size);
    const double attention = 3.5 * 4 * q * mean_context * num_layers * block_rows;
    const double head = 2 * 2 * h * static_cast<double>(draft.vocab_size) * head_rows;
    cost.draft_flops = fc + context_kv + blocks + attention + head;
    return cost;
}

RunPlan make_plan(const PlanInput& in) {
    const Settings& s = in.settings;
    RunPlan plan;
    plan.max_row_tokens = std::max(s.data.row_tokens, s.data.max_length);
    plan.max_row_blocks = std::max(s.data.row_anchors, s.draft.anchors);

    // Packing fills rows to about 95 %; a row closes at tokens or anchors, whichever is first.
    const double tokens = static_cast<double>(in.data.tokens);
    const double anchors = static_cast<double>(in.data.anchors);
    const double by_tokens = tokens / static_cast<double>(s.data.row_tokens);
    const double by_anchors = anchors / static_cast<double>(s.data.row_anchors);
    plan.rows_per_epoch = std::max(1.0, std::ceil(std::max(by_tokens, by_anchors) / 0.95));
    plan.tokens_per_row = tokens / plan.rows_per_epoch;
    plan.anchors_per_row = anchors / plan.rows_per_epoch;
    const double documents_per_row =
        static_cast<double>(in.num_train_samples) / plan.rows_per_epoch;
    plan.cost =
        row_cost(in.target, in.draft, plan.tokens_per_row, documents_per_row, plan.anchors_per_row);

    plan.recompute_layers = s.train.recompute_layers;
    if (plan.recompute_layers > in.draft.num_layers()) {
        reject(fmt::format("train.recompute_layers: got {}, expected at most the {} layers of the "
                           "drafter",
                           plan.recompute_layers,
                           in.draft.num_layers()),
               {});
    }
    const double again = recompute_flops(in.draft, plan.recompute_layers, plan.anchors_per_row);
    plan.recompute_share = again / plan.cost.draft_flops;
    plan.cost.draft_flops += again;

    plan.roles = choose_roles(s.run, static_cast<int>(in.devices.size()), plan.cost);
    const auto num_targets = static_cast<int>(plan.roles.targets.size());
    const auto num_drafters = static_cast<int>(plan.roles.drafters.size());
    // Two slots a drafter let the next row arrive while one is used; more targets than drafters
    // keep more rows in flight.
    plan.num_slots =
        num_drafters * std::max(2, (num_targets + num_drafters - 1) / num_drafters + 1);

    double rows = plan.rows_per_epoch * static_cast<double>(s.train.epochs);
    if (s.train.tokens) {
        rows = static_cast<double>(*s.train.tokens) / std::max(1.0, plan.tokens_per_row);
    }
    const double peak = peak_flops(in.devices.front());
    const double row_seconds =
        num_targets == 1 && num_drafters == 1 && plan.roles.targets == plan.roles.drafters
            ? (plan.cost.target_flops + plan.cost.draft_flops) / (0.4 * peak)
            : std::max(plan.cost.target_flops / num_targets, plan.cost.draft_flops / num_drafters) /
                  (0.4 * peak);
    plan.seconds = s.train.hours ? *s.train.hours * 3600 : rows * row_seconds;
    plan.steps = s.train.hours ? 0 : std::ceil(rows / static_cast<double>(s.train.rows_per_step));

    const std::int64_t parameters = model::num_parameters(in.draft);
    plan.checkpoint_bytes = checkpoint_bytes(parameters);
    plan.save_buffers = parameters * 12;
    plan.disk_needed =
        (s.checkpoint.keep + 1) * plan.checkpoint_bytes + s.checkpoint.keep_drafts * parameters * 2;

    const auto plan_devices = [&] {
        plan.devices.clear();
        for (const gpu::Device& device : in.devices) {
            plan.devices.push_back(plan_device(in, plan, device));
        }
        check_memory(in, plan);
    };
    plan.acceptance = in.acceptance;
    plan.acceptance_off = in.acceptance_off;
    try {
        plan_devices();
    } catch (const Error& error) {
        if (!plan.acceptance) {
            throw;
        }
        // Training comes first.
        plan.acceptance.reset();
        plan.acceptance_off = "there is no room beside training: " + error.parts().what;
        plan_devices();
    }
    return plan;
}

std::vector<std::string> RunPlan::to_lines() const {
    std::vector<std::string> lines;
    lines.push_back(fmt::format("split     {} target{} + {} drafter{}: {}",
                                roles.targets.size(),
                                roles.targets.size() == 1 ? "" : "s",
                                roles.drafters.size(),
                                roles.drafters.size() == 1 ? "" : "s",
                                roles.reason));
    for (const DevicePlan& d : devices) {
        const char* role = d.has_target && d.has_drafter ? "target and drafter"
                           : d.has_target                ? "target"
                           : d.has_drafter               ? "drafter"
                                                         : "not used";
        lines.push_back(
            fmt::format("  {:<9} {:<18} {:>10}  (weights {}, training state {}, activations {}, "
                        "feature slots {}{})",
                        d.device.name,
                        role,
                        format_bytes(d.needed()),
                        format_bytes(d.target_weights),
                        format_bytes(d.draft_state),
                        format_bytes(d.activations),
                        format_bytes(d.feature_slots),
                        d.acceptance > 0 ? ", real decoding " + format_bytes(d.acceptance) : ""));
    }
    if (acceptance) {
        lines.push_back(fmt::format(
            "decoding  evaluations decode {} held-out prompts for up to {} tokens with the drafter "
            "as it is (eval.acceptance_prompts = 0 turns that off)",
            acceptance->prompts,
            acceptance->answer_tokens));
    } else if (!acceptance_off.empty()) {
        lines.push_back(
            fmt::format("decoding  evaluations do not really decode: {}", acceptance_off));
    }
    lines.push_back(
        fmt::format("rows      about {} an epoch of {:.0f} tokens and {:.0f} anchors; {} slots "
                    "between target and drafter",
                    format_count(static_cast<std::int64_t>(rows_per_epoch)),
                    tokens_per_row,
                    anchors_per_row,
                    num_slots));
    lines.push_back(fmt::format("work      {:.3g} TFLOP a row: target {:.3g}, drafter {:.3g}",
                                (cost.target_flops + cost.draft_flops) / 1e12,
                                cost.target_flops / 1e12,
                                cost.draft_flops / 1e12));
    if (recompute_layers > 0) {
        Bytes saves = 0;
        for (const DevicePlan& d : devices) {
            saves = std::max(saves, d.recompute_saves);
        }
        lines.push_back(
            fmt::format("recompute MLP of {} layer{} in the backward: {} less on a "
                        "drafter's device, {:.1f} % more work for the drafter",
                        recompute_layers,
                        recompute_layers == 1 ? "" : "s",
                        format_bytes(saves),
                        100 * recompute_share));
    }
    Bytes float8_head = 0;
    for (const DevicePlan& d : devices) {
        float8_head = std::max(float8_head, d.float8_head);
    }
    if (float8_head > 0) {
        lines.push_back(fmt::format("head      also in fp8: {} more on a drafter's device",
                                    format_bytes(float8_head)));
    }
    lines.push_back(fmt::format(
        "time      {}{} (a first guess; the run prints what it measures)",
        steps > 0 ? fmt::format("about {} steps, ", format_count(static_cast<std::int64_t>(steps)))
                  : "",
        format_seconds(seconds)));
    lines.push_back(
        fmt::format("disk      {} a checkpoint, {} in all; {} of host memory to write them from",
                    format_bytes(checkpoint_bytes),
                    format_bytes(disk_needed),
                    format_bytes(save_buffers)));
    if (seconds > 24 * 3600) {
        lines.push_back(
            "warning   this takes more than a day; --hours 24 fits the schedule into one");
    }
    return lines;
}

void check_free_disk(const RunPlan& plan, const std::string& folder) {
    std::filesystem::path path = std::filesystem::absolute(folder);
    while (!std::filesystem::exists(path) && path.has_parent_path() && path != path.parent_path()) {
        path = path.parent_path();
    }
    std::error_code error;
    const auto space = std::filesystem::space(path, error);
    const Bytes needed = plan.disk_needed - std::min(plan.disk_needed, saved_bytes(folder));
    if (!error && static_cast<Bytes>(space.available) < needed) {
        throw Error(
            ErrorKind::Storage,
            {.what = fmt::format("not enough free disk for the checkpoints: got {}, expected {}",
                                 format_bytes(static_cast<Bytes>(space.available)),
                                 format_bytes(needed)),
             .where = path.string(),
             .cause = {},
             .hint = "Free some space, choose another --output, or lower checkpoint.keep and "
                     "checkpoint.keep_drafts"});
    }
}

}  // namespace dflash::train
