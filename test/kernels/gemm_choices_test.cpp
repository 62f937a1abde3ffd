// SPDX-License-Identifier: Apache-2.0
#include "captured_log.hpp"
#include "scratch_folder.hpp"

#include <dflash/core/error.hpp>
#include <dflash/kernels/gemm_choices.hpp>

#include <atomic>
#include <doctest/doctest.h>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace dflash::kernels {
namespace {

GemmShape shape_of(std::int64_t rows) {
    return {.m = rows, .n = 512, .k = 1024, .b_transposed = true};
}

GemmChoice choice_of(std::uint64_t number) {
    GemmAlgorithm algorithm;
    for (std::uint64_t& word : algorithm.code) {
        word = number;
        number = number * 0x9e3779b97f4a7c15U + 1;
    }
    algorithm.workspace_bytes = 4096;
    return {algorithm, 0.125, 0.25};
}

/// Chooses that for all shapes.
auto always(const GemmChoice& choice) {
    return [choice](const std::vector<GemmShape>& shapes) {
        return std::vector<GemmChoice>(shapes.size(), choice);
    };
}

TEST_SUITE("kernels.gemm_choices") {
    TEST_CASE("shapes of one class differ in rows of activations up to the next power of two") {
        struct Case {
            std::int64_t rows;
            std::int64_t expected;
        };

        for (const auto& [rows, expected] :
             {Case{1, 256}, Case{256, 256}, Case{257, 512}, Case{8192, 8192}, Case{8193, 16384}}) {
            CAPTURE(rows);
            CHECK(gemm_class(shape_of(rows)).m == expected);
            CHECK(gemm_class(shape_of(rows)).k == 1024);
            // A weight's gradient sums over the rows.
            const GemmShape gradient{.m = 300, .n = 700, .k = rows, .a_transposed = true};
            CHECK(gemm_class(gradient).k == expected);
            CHECK(gemm_class(gradient).m == 300);
            CHECK(gemm_class(gradient).n == 700);
        }
        CHECK(gemm_class(shape_of(300)).id() != gemm_class(shape_of(600)).id());
    }

    TEST_CASE("a class is timed once, also by many threads") {
        GemmChoices choices("NVIDIA H200", "1 a");
        std::atomic<int> timed = 0;
        std::vector<std::jthread> threads;
        for (int i = 0; i < 8; ++i) {
            threads.emplace_back([&] {
                for (const std::int64_t rows : {1000, 5000, 1024, 513}) {
                    choices.choose({shape_of(rows), shape_of(rows - 1)},
                                   [&](const std::vector<GemmShape>& open) {
                                       // The other is of the same class, unless it is 512.
                                       CHECK(open.size() == 1);
                                       ++timed;
                                       return always(choice_of(rows < 2000 ? 1 : 2))(open);
                                   });
                }
            });
        }
        threads.clear();
        CHECK(timed == 3);
        CHECK(choices.num_timed() == 3);
        CHECK(choices.find(shape_of(700)).value() == choice_of(1));
        CHECK(choices.find(shape_of(4500)).value() == choice_of(2));
        CHECK_FALSE(choices.find(shape_of(200)).has_value());
    }

    TEST_CASE("only classes that were asked for count as used") {
        GemmChoices choices("NVIDIA H200", "1 a");
        choices.add({{gemm_class(shape_of(300)).id(), choice_of(1)},
                     {gemm_class(shape_of(600)).id(), choice_of(2)}});
        CHECK(choices.used().empty());
        CHECK(choices.find(shape_of(301)).has_value());
        CHECK_FALSE(choices.find(shape_of(5000)).has_value());
        choices.choose({shape_of(9000)}, always({}));
        const GemmChoiceMap used = choices.used();
        CHECK(used.size() == 2);
        CHECK(used.at(gemm_class(shape_of(300)).id()) == choice_of(1));
        CHECK_FALSE(used.at(gemm_class(shape_of(9000)).id()).algorithm.has_value());
    }

    TEST_CASE("choices have changed where the algorithm has, not the time") {
        const GemmChoiceMap before{{"a", choice_of(1)}, {"b", {}}, {"c", choice_of(2)}};
        GemmChoiceMap now = before;
        now["a"].ms = 7;
        now.erase("c");
        CHECK(changed_choices(before, now).empty());
        now["a"] = choice_of(3);
        now["b"] = choice_of(3);
        now["d"] = {};
        CHECK(changed_choices(before, now) == std::vector<std::string>{"a", "b", "d"});
    }

    TEST_CASE("choices are the same after a file") {
        const ScratchFolder folder;
        GemmChoices first("NVIDIA H200", "1 a");
        first.save_to(folder.path());  // nothing was timed
        CHECK_FALSE(std::ifstream(folder.path() + "/nvidia-h200.json").good());
        first.choose({shape_of(1000)}, always(choice_of(0xfedcba9876543210U)));
        first.choose({shape_of(9000)}, always({.algorithm = {}, .ms = 1, .guess_ms = 1}));
        first.save_to(folder.path());

        GemmChoices second("NVIDIA H200", "1 a");
        second.load_from(folder.path());
        CHECK(second.size() == 2);
        CHECK(second.num_timed() == 0);
        CHECK(second.find(shape_of(1000)).value() == choice_of(0xfedcba9876543210U));
        CHECK_FALSE(second.find(shape_of(9000)).value().algorithm.has_value());
        CHECK(second.to_text() == first.to_text());
    }

    TEST_CASE("what a class has already stays, in memory as in the file") {
        const ScratchFolder folder;
        GemmChoices first("NVIDIA H200", "1 a");
        GemmChoices second("NVIDIA H200", "1 a");
        first.choose({shape_of(1000)}, always(choice_of(1)));
        second.choose({shape_of(1000), shape_of(3000)}, always(choice_of(2)));
        first.save_to(folder.path());
        second.load_from(folder.path());
        CHECK(second.find(shape_of(1000)).value() == choice_of(2));
        second.save_to(folder.path());

        GemmChoices third("NVIDIA H200", "1 a");
        third.load_from(folder.path());
        CHECK(third.size() == 2);
        CHECK(third.find(shape_of(1000)).value() == choice_of(1));
        CHECK(third.find(shape_of(3000)).value() == choice_of(2));
    }

    TEST_CASE("a folder that cannot be written is a warning") {
        const ScratchFolder folder;
        const CapturedLog log;
        std::ofstream(folder.path() + "/products") << "a file";
        GemmChoices choices("NVIDIA H200", "1 a");
        choices.choose({shape_of(1000)}, always(choice_of(1)));
        choices.save_to(folder.path() + "/products");
        REQUIRE(log.warnings().size() == 1);
        CHECK(log.warnings()[0].find("is not kept") != std::string::npos);
    }

    TEST_CASE("choices of another library or GPU are not taken, nor damaged ones") {
        const ScratchFolder folder;
        const CapturedLog log;
        GemmChoices first("NVIDIA H200", "1 a");
        first.choose({shape_of(1000)}, always(choice_of(3)));
        first.save_to(folder.path());
        GemmChoices newer("NVIDIA H200", "2 b");
        newer.load_from(folder.path());
        CHECK(newer.size() == 0);
        GemmChoices other("NVIDIA L40S", "1 a");
        CHECK_FALSE(other.read(first.to_text(), "here"));

        const std::string path = folder.path() + "/nvidia-h200.json";
        for (const char* text : {"", "{}", "[1]", "{\"format\": 1}", "\xff"}) {
            CAPTURE(text);
            std::ofstream(path) << text;
            GemmChoices again("NVIDIA H200", "1 a");
            again.load_from(folder.path());
            CHECK(again.size() == 0);
        }
        std::string damaged = first.to_text();
        damaged.replace(damaged.find("\"code\": \"") + 9, 4, "xyz!");
        CHECK_THROWS_AS(first.read(damaged, "here"), Error);
        CHECK(first.size() == 1);
    }
}

}  // namespace
}  // namespace dflash::kernels
