// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/train/plan.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

namespace dflash::train {
namespace {

target::TargetConfig qwen3_8b() {
    target::TargetConfig t;
    t.family = target::Family::Qwen3;
    t.model_type = "qwen3";
    t.architecture = "Qwen3ForCausalLM";
    t.hidden_size = 4096;
    t.intermediate_size = 12288;
    t.num_layers = 36;
    t.num_heads = 32;
    t.num_kv_heads = 8;
    t.head_dim = 128;
    t.vocab_size = 151936;
    return t;
}

model::DraftConfig drafter_8b() {
    model::DraftConfig d;
    d.hidden_size = 4096;
    d.intermediate_size = 12288;
    d.num_heads = 32;
    d.num_kv_heads = 8;
    d.head_dim = 128;
    d.vocab_size = 151936;
    d.block_size = 16;
    d.mask_token_id = 151669;
    d.target_layer_ids = {1, 9, 17, 25, 33};
    d.num_target_layers = 36;
    d.layer_types.assign(5, model::LayerType::Full);
    return d;
}

std::vector<gpu::Device> gpus(int count) {
    std::vector<gpu::Device> devices;
    for (int i = 0; i < count; ++i) {
        devices.push_back({gpu::DeviceKind::Cuda, i, i, "cuda:" + std::to_string(i)});
    }
    return devices;
}

RunPlan plan_for(const Settings& settings,
                 int num_gpus,
                 long long memory_bytes,
                 const std::optional<AcceptanceNeed>& acceptance = std::nullopt) {
    data::DataReport report;
    report.usable = 10000;
    report.tokens = 20'000'000;
    report.anchors = 2'000'000;
    const target::TargetConfig target = qwen3_8b();
    const model::DraftConfig draft = drafter_8b();
    return make_plan({.settings = settings,
                      .target = target,
                      .draft = draft,
                      .data = report,
                      .num_train_samples = 10000,
                      .devices = gpus(num_gpus),
                      .memory =
                          [=](const gpu::Device&) {
                              return gpu::DeviceMemory{memory_bytes, memory_bytes};
                          },
                      .acceptance = acceptance});
}

constexpr long long kGiB = 1LL << 30;

ErrorKind kind_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.kind();
    }
    return ErrorKind::Internal;
}

}  // namespace

TEST_SUITE("train.plan") {
    TEST_CASE("the cost of a row is that of the table for 4096 tokens and 512 blocks of 16") {
        // 14.26 GFLOP a context token for the target's 34 layers, 18.33 for the drafter's training.
        const RowCost cost = row_cost(qwen3_8b(), drafter_8b(), 4096, 1, 512);
        CHECK(cost.target_flops / 4096 == doctest::Approx(14.26e9).epsilon(0.01));
        CHECK(cost.draft_flops / 4096 ==
              doctest::Approx(18.02e9).epsilon(0.01));  // 15 of 16 slots in the head
    }

    TEST_CASE("one device does both, more are split by cost") {
        RunSettings settings;
        CHECK(choose_roles(settings, 1, {1, 1}).targets == std::vector<int>{0});
        CHECK(choose_roles(settings, 1, {1, 1}).drafters == std::vector<int>{0});
        const Roles roles = choose_roles(settings, 8, {5, 3});
        CHECK(roles.targets == std::vector<int>{0, 1, 2, 3, 4});
        CHECK(roles.drafters == std::vector<int>{5, 6, 7});
        CHECK(choose_roles(settings, 2, {1, 100}).targets == std::vector<int>{0});
    }

    TEST_CASE("a split can be given") {
        RunSettings settings;
        settings.split = "1+3";
        CHECK(choose_roles(settings, 4, {5, 3}).drafters == std::vector<int>{1, 2, 3});
        settings.split.clear();
        settings.target_gpus = "0-2";
        settings.draft_gpus = "1,2";
        CHECK(choose_roles(settings, 3, {5, 3}).targets == std::vector<int>{0, 1, 2});
        CHECK(choose_roles(settings, 3, {5, 3}).drafters == std::vector<int>{1, 2});
    }

    TEST_CASE("a split that does not fit is refused") {
        for (const char* split : {"3+3", "0+4", "x", "4", "2+", "+2", "2+2x"}) {
            CAPTURE(split);
            RunSettings settings;
            settings.split = split;
            CHECK(kind_of([&] { choose_roles(settings, 4, {1, 1}); }) == ErrorKind::Config);
        }
        for (const char* list : {"4", "-1", "1-", "a", "0,,1", "2-1"}) {
            CAPTURE(list);
            RunSettings settings;
            settings.target_gpus = list;
            settings.draft_gpus = "0";
            CHECK(kind_of([&] { choose_roles(settings, 4, {1, 1}); }) == ErrorKind::Config);
        }
        RunSettings half;
        half.draft_gpus = "0";
        CHECK(kind_of([&] { choose_roles(half, 4, {1, 1}); }) == ErrorKind::Config);
    }

    TEST_CASE("slots are a multiple of the drafters and at least two each") {
        for (int count = 1; count <= 8; ++count) {
            const RunPlan plan = plan_for(Settings{}, count, 140 * kGiB);
            const auto drafters = static_cast<int>(plan.roles.drafters.size());
            CAPTURE(count);
            CHECK(plan.num_slots % drafters == 0);
            CHECK(plan.num_slots >= 2 * drafters);
        }
    }

    TEST_CASE("a plan that cannot fit is refused with what is needed and what there is") {
        CHECK_NOTHROW(plan_for(Settings{}, 1, 140 * kGiB));
        try {
            plan_for(Settings{}, 1, 24 * kGiB);
            FAIL("24 GiB hold neither target and drafter");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(std::string(error.what()).find("24.00 GiB are free") != std::string::npos);
            CHECK(std::string(error.what()).find("cuda:0") != std::string::npos);
        }
    }

    TEST_CASE("what is computed again is said with what it saves and costs") {
        Settings settings;
        const RunPlan kept = plan_for(settings, 1, 140 * kGiB);
        settings.train.recompute_layers = 5;
        const RunPlan again = plan_for(settings, 1, 140 * kGiB);
        // gate and up of rows of 2048 blocks: in all layers 5 x 1.5 GiB but slot 0 in the last,
        // against one for all, which lies beside the activation in memory that others use as well.
        const Bytes gate_up = 2048LL * 16 * 2 * 12288 * 2;
        CHECK(again.devices.front().recompute_saves > 3 * gate_up);
        CHECK(again.devices.front().recompute_saves < 5 * gate_up);
        CHECK(again.devices.front().activations + again.devices.front().recompute_saves ==
              kept.devices.front().activations);
        CHECK(again.cost.draft_flops ==
              doctest::Approx(kept.cost.draft_flops * (1 + again.recompute_share)));
        CHECK(again.recompute_share > 0.05);
        CHECK(again.recompute_share < 0.15);
        const std::vector<std::string> lines = again.to_lines();
        CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
            return line.starts_with("recompute MLP of 5 layers in the backward: ");
        }));
        settings.train.recompute_layers = 6;
        CHECK_THROWS_WITH_AS(plan_for(settings, 1, 140 * kGiB),
                             doctest::Contains("got 6, expected at most the 5 layers"),
                             Error);
    }

    TEST_CASE("a head in 8 bits is planned on drafters' devices, and said") {
        Settings settings;
        settings.run.split = "1+1";
        const RunPlan in_bf16 = plan_for(settings, 2, 140 * kGiB);
        CHECK(in_bf16.devices[1].float8_head == 0);
        settings.draft.head_precision = "fp8-logits";
        const RunPlan logits = plan_for(settings, 2, 140 * kGiB);
        const Bytes words = 151936LL * (4096 + 4);
        CHECK(logits.devices[1].float8_head == words);
        settings.draft.head_precision = "fp8";
        const RunPlan both = plan_for(settings, 2, 140 * kGiB);
        CHECK(both.devices[1].float8_head == words + 4096LL * (151936 + 4));
        CHECK(both.devices[1].draft_state ==
              in_bf16.devices[1].draft_state + both.devices[1].float8_head);
        CHECK(both.devices[1].activations > in_bf16.devices[1].activations);
        // The workspace of cuBLASLt is one, whoever makes the other products.
        settings.train.products = "torch";
        CHECK(plan_for(settings, 2, 140 * kGiB).devices[1].activations ==
              both.devices[1].activations);
        CHECK(both.devices[0].needed() == in_bf16.devices[0].needed());
        const auto says_so = [](const RunPlan& plan) {
            const std::vector<std::string> lines = plan.to_lines();
            return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
                return line.starts_with("head      also in fp8: 1.16 GiB more");
            });
        };
        CHECK(says_so(both));
        CHECK_FALSE(says_so(in_bf16));
    }

    TEST_CASE("real decoding is planned where a target is, and left out where it has no room") {
        Settings settings;
        settings.run.split = "1+1";
        const AcceptanceNeed need{
            .prompts = 16, .answer_tokens = 128, .slots = 8, .capacity = 1152, .pass_tokens = 4096};
        const RunPlan without = plan_for(settings, 2, 140 * kGiB);
        const RunPlan with = plan_for(settings, 2, 140 * kGiB, need);
        CHECK(without.devices[0].acceptance == 0);
        CHECK(with.devices[1].acceptance == 0);
        // Two layers and the head of 8B in bf16 are 2 GiB, the drafter as much, keys and values of
        // 8 x 1168 tokens 1.4 GiB.
        CHECK(with.devices[0].acceptance > 5 * kGiB);
        CHECK(with.devices[0].acceptance < 10 * kGiB);
        CHECK(with.devices[0].needed() == without.devices[0].needed() + with.devices[0].acceptance);
        REQUIRE(with.acceptance);
        const auto has = [](const RunPlan& plan, const std::string& part) {
            for (const std::string& line : plan.to_lines()) {
                if (line.find(part) != std::string::npos) {
                    return true;
                }
            }
            return false;
        };
        CHECK(has(with, "decode 16 held-out prompts for up to 128 tokens"));
        CHECK(has(with, ", real decoding "));

        // 56 slots more: their keys and values, target's and drafter's, and graphs of larger
        // rounds.
        AcceptanceNeed more = need;
        more.slots = 64;
        const Bytes grown = plan_for(settings, 2, 140 * kGiB, more).devices[0].acceptance -
                            with.devices[0].acceptance;
        const Bytes cached = Bytes{56} * (1152 + 16) * 2 * (36 + 5) * 8 * 128 * 2;
        CHECK(grown > cached + kGiB / 8);
        CHECK(grown < cached + kGiB);

        // What just holds the training of one GPU that does both.
        Settings one;
        const auto needed = plan_for(one, 1, 140 * kGiB).devices[0].needed();
        const RunPlan full = plan_for(one, 1, needed + kGiB, need);
        CHECK_FALSE(full.acceptance);
        CHECK(full.devices[0].acceptance == 0);
        CHECK(has(full, "evaluations do not really decode: there is no room beside training"));
    }

    TEST_CASE("logical devices on one GPU share its memory") {
        Settings settings;
        const target::TargetConfig target = qwen3_8b();
        const model::DraftConfig draft = drafter_8b();
        data::DataReport report;
        report.tokens = 1000000;
        report.anchors = 100000;
        std::vector<gpu::Device> devices = gpus(4);
        for (gpu::Device& device : devices) {
            device.ordinal = 0;
        }
        const auto input = [&](long long bytes) {
            return PlanInput{.settings = settings,
                             .target = target,
                             .draft = draft,
                             .data = report,
                             .num_train_samples = 500,
                             .devices = devices,
                             .memory = [=](const gpu::Device&) {
                                 return gpu::DeviceMemory{bytes, bytes};
                             }};
        };
        CHECK_NOTHROW(make_plan(input(800 * kGiB)));
        CHECK_THROWS_AS(make_plan(input(80 * kGiB)), Error);
    }

    TEST_CASE("the disk demanded holds keep + 1 checkpoints and the kept drafts") {
        const RunPlan plan = plan_for(Settings{}, 8, 140 * kGiB);
        CHECK(plan.checkpoint_bytes == doctest::Approx(14.0 * 1.0486e9).epsilon(0.01));
        const std::int64_t parameters = model::num_parameters(drafter_8b());
        CHECK(plan.disk_needed == 3 * plan.checkpoint_bytes + 3 * 2 * parameters);
    }

    TEST_CASE("the buffers of saves count against the memory of the machine") {
        const std::int64_t parameters = model::num_parameters(drafter_8b());
        CHECK(plan_for(Settings{}, 8, 140 * kGiB).save_buffers == 12 * parameters);
        const target::TargetConfig target = qwen3_8b();
        const model::DraftConfig draft = drafter_8b();
        data::DataReport report;
        report.tokens = 1000000;
        report.anchors = 100000;
        const Settings settings;
        const auto plan_with_host = [&](long long host_bytes) {
            make_plan({.settings = settings,
                       .target = target,
                       .draft = draft,
                       .data = report,
                       .num_train_samples = 500,
                       .devices = gpus(2),
                       .memory = [=](const gpu::Device& device) {
                           const long long bytes = device.is_cuda() ? 140 * kGiB : host_bytes;
                           return gpu::DeviceMemory{bytes, bytes};
                       }});
        };
        CHECK_NOTHROW(plan_with_host(12 * parameters));
        try {
            plan_with_host(12 * parameters - 1);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(std::string(error.what()).find("buffers of saves") != std::string::npos);
        }
    }

    TEST_CASE("a disk without room for the checkpoints is refused with both figures") {
        RunPlan plan;
        plan.disk_needed = std::int64_t{1} << 60;
        const auto folder =
            std::filesystem::temp_directory_path() / fmt::format("dflash-plan-{}", ::getpid());
        try {
            check_free_disk(plan, folder.string());
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Storage);
            CHECK(error.parts().what.find("expected 1073741824.00 GiB") != std::string::npos);
        }
        CHECK_FALSE(std::filesystem::exists(folder));
        // What the run itself has saved there makes room for what follows.
        std::filesystem::create_directories(folder / "step-000005" / "state");
        const auto file = folder / "step-000005" / "state" / "optimizer.safetensors";
        std::ofstream(file) << "x";
        std::filesystem::resize_file(file, 1 << 30);  // sparse
        const auto free_bytes =
            static_cast<std::int64_t>(std::filesystem::space(folder.parent_path()).available);
        plan.disk_needed = free_bytes + (std::int64_t{1} << 29);
        CHECK_NOTHROW(check_free_disk(plan, folder.string()));
        std::filesystem::remove_all(folder);
        CHECK_THROWS_AS(check_free_disk(plan, folder.string()), Error);
    }
}

}  // namespace dflash::train
