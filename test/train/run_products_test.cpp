// SPDX-License-Identifier: Apache-2.0
#include "tiny_run.hpp"

#include <dflash/train/run_products.hpp>

#include <doctest/doctest.h>
#include <filesystem>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

kernels::GemmShape shape_of(std::int64_t rows) {
    return {.m = rows, .n = 512, .k = 1024, .b_transposed = true};
}

std::string class_of(std::int64_t rows) {
    return kernels::gemm_class(shape_of(rows)).id();
}

kernels::GemmChoice choice_of(std::uint64_t code) {
    return {.algorithm = kernels::GemmAlgorithm{.code = {code}, .workspace_bytes = 0},
            .ms = 1,
            .guess_ms = 2};
}

/// Writes choices as a start that has timed them does.
void keep(const std::string& folder,
          const std::string& library,
          const std::vector<std::int64_t>& rows,
          std::uint64_t code) {
    kernels::GemmChoices choices("NVIDIA H200", library);
    std::vector<kernels::GemmShape> shapes;
    for (const std::int64_t m : rows) {
        shapes.push_back(shape_of(m));
    }
    choices.choose(shapes, [&](const std::vector<kernels::GemmShape>& open) {
        return std::vector<kernels::GemmChoice>(open.size(), choice_of(code));
    });
    choices.save_to(folder);
}

}  // namespace

TEST_SUITE("train.run_products") {
    TEST_CASE("the checkpoint's choices come before those of the cache") {
        const TemporaryFolder folder;
        const std::string cache = folder.path("products");
        keep(cache, "1 a", {300, 600, 1200}, 5);
        const ProductRecord saved{
            .way = "timed",
            .gpus = {{"NVIDIA L40S", "1 a", {{class_of(300), choice_of(8)}}},
                     {"NVIDIA H200", "1 a", {{class_of(600), choice_of(9)}}}}};
        const auto choices = collect_choices("NVIDIA H200", "1 a", saved, cache);
        CHECK(choices->find(shape_of(300)).value() == choice_of(5));
        CHECK(choices->find(shape_of(600)).value() == choice_of(9));
        CHECK(choices->find(shape_of(1200)).value() == choice_of(5));
        CHECK(choices->num_timed() == 0);
        // A run that goes on is told nothing where it goes on with its own.
        CHECK(choices->used().at(class_of(600)) == choice_of(9));
        CHECK(collect_choices("NVIDIA H200", "1 a", saved, "")->size() == 1);
    }

    TEST_CASE("a checkpoint of another cuBLASLt gives no choices, and the change is told") {
        const TemporaryFolder folder;
        const std::string cache = folder.path("products");
        keep(cache, "2 b", {600}, 5);
        const ProductRecord saved{
            .way = "timed", .gpus = {{"NVIDIA H200", "1 a", {{class_of(600), choice_of(9)}}}}};
        const auto choices = collect_choices("NVIDIA H200", "2 b", saved, cache);
        CHECK(choices->find(shape_of(600)).value() == choice_of(5));
        const ProductRecord now{.way = "timed", .gpus = {{"NVIDIA H200", "2 b", choices->used()}}};
        CHECK(product_changes(saved, now).size() == 1);
    }

    TEST_CASE("a choice that is made anew after the file was deleted is told") {
        const TemporaryFolder folder;
        const std::string cache = folder.path("products");
        const auto used_now = [&] {
            const auto choices = collect_choices("NVIDIA H200", "1 a", {}, cache);
            for (const std::int64_t rows : {300, 600}) {
                REQUIRE(choices->find(shape_of(rows)).has_value());
            }
            return ProductRecord{.way = "timed", .gpus = {{"NVIDIA H200", "1 a", choices->used()}}};
        };
        keep(cache, "1 a", {300, 600, 1200}, 5);
        const ProductRecord first = used_now();
        CHECK(product_changes(first, used_now()).empty());
        std::filesystem::remove_all(cache);
        keep(cache, "1 a", {600}, 6);
        keep(cache, "1 a", {300}, 5);  // the same as it was
        const ProductRecord second = used_now();
        CHECK(second.id() != first.id());
        REQUIRE(product_changes(first, second).size() == 1);
        CHECK(product_changes(first, second)[0].find("1 of 2 have another algorithm") !=
              std::string::npos);
    }

    TEST_CASE("the CPU has no choice of products") {
        RunProducts products("timed", "", {});
        const gpu::Device cpu{.name = "cpu:0"};
        CHECK(products.make_gemm(cpu) == nullptr);
        CHECK_FALSE(products.times_on(cpu));
        products.seal();
        CHECK(products.record() == ProductRecord{});
        CHECK(products.to_lines().empty());
    }
}

}  // namespace dflash::train
