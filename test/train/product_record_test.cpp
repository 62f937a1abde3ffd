// SPDX-License-Identifier: Apache-2.0
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/train/product_record.hpp>

#include <chrono>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

kernels::GemmChoice choice_of(std::uint64_t code) {
    return {.algorithm = kernels::GemmAlgorithm{.code = {code, 7}, .workspace_bytes = 1 << 20},
            .ms = 0.5,
            .guess_ms = 0.75};
}

ProductRecord timed_record() {
    return {.way = "timed",
            .gpus = {{.gpu = "NVIDIA H200",
                      .library = "130100 abc",
                      .choices = {{"1024x512x64 nt bf16", choice_of(1)},
                                  {"256x512x64 nt bf16", choice_of(2)},
                                  {"512x512x64 nt bf16", {}},
                                  {"512x64x512 nn bf16 add", choice_of(3)},
                                  {"512x64x512 tn fp32 add", choice_of(0xffffffffffffffffU)}}}}};
}

ProductRecord guessed_record(const std::string& gpu, const std::string& library) {
    return {.way = "guessed", .gpus = {{.gpu = gpu, .library = library, .choices = {}}}};
}

void write_run(const std::string& folder, const ProductRecord& record, int age_s) {
    fs::create_directories(folder);
    std::ofstream(folder + "/products.json") << record.to_text();
    fs::last_write_time(folder + "/products.json",
                        fs::file_time_type::clock::now() - std::chrono::seconds(age_s));
}

}  // namespace

TEST_SUITE("train.product_record") {
    TEST_CASE("a record is read back as it was written, and nothing else is one") {
        for (const ProductRecord& record :
             {timed_record(), guessed_record("NVIDIA L40S", "1 a"), ProductRecord{}}) {
            CHECK(ProductRecord::parse(record.to_text(), "here") == record);
        }
        std::string damaged = timed_record().to_text();
        damaged.replace(damaged.find("\"code\": \"") + 9, 3, "xyz");
        for (const std::string& text : {std::string(),
                                        std::string("[]"),
                                        std::string(R"({"format": 1, "way": "timed"})"),
                                        std::string(R"({"format": 2, "way": "", "gpus": []})"),
                                        std::string(R"({"format": 1, "way": "", "gpus": [{}]})"),
                                        damaged}) {
            CAPTURE(text);
            CHECK_THROWS_AS(ProductRecord::parse(text, "here"), Error);
        }
    }

    TEST_CASE("the id follows the algorithms, not their times") {
        ProductRecord record = timed_record();
        const std::string id = record.id();
        CHECK(id.size() == 12);
        record.gpus[0].choices["512x512x64 nt bf16"].ms = 9;
        CHECK(record.id() == id);
        record.gpus[0].choices["512x512x64 nt bf16"] = choice_of(4);
        CHECK(record.id() != id);
    }

    TEST_CASE("what makes results equal only to rounding is told") {
        ProductRecord changed = timed_record();
        for (auto& [key, choice] : changed.gpus[0].choices) {
            choice = choice_of(9);
        }
        ProductRecord other_library = timed_record();
        other_library.gpus[0].library = "140000 def";
        ProductRecord more = timed_record();
        more.gpus[0].choices["2048x512x64 nt bf16"] = {};
        ProductRecord by_torch = guessed_record("NVIDIA H200", "130100 abc");
        by_torch.way = "torch";

        struct Case {
            const char* what;
            ProductRecord before;
            ProductRecord now;
            std::vector<std::string> lines;
        };

        const std::vector<Case> cases = {
            {"the same", timed_record(), timed_record(), {}},
            {"the same guesses",
             guessed_record("NVIDIA H200", "1 a"),
             guessed_record("NVIDIA H200", "1 a"),
             {}},
            {"on the CPU", {}, {}, {}},
            {"an older checkpoint, LibTorch as before", {}, by_torch, {}},
            {"an older checkpoint",
             {},
             guessed_record("NVIDIA H200", "1 a"),
             {"products: by LibTorch before (there is no record of another way), guessed by "
              "cuBLASLt now"}},
            {"another way",
             timed_record(),
             guessed_record("NVIDIA H200", "130100 abc"),
             {"products: timed by cuBLASLt before, guessed by cuBLASLt now"}},
            {"another GPU",
             guessed_record("NVIDIA L40S", "1 a"),
             guessed_record("NVIDIA H200", "1 a"),
             {"products: on NVIDIA L40S with cuBLASLt 1 a before, on NVIDIA H200 with cuBLASLt 1 "
              "a now"}},
            {"another cuBLASLt",
             timed_record(),
             other_library,
             {"products: on NVIDIA H200 with cuBLASLt 130100 abc before, on NVIDIA H200 with "
              "cuBLASLt 140000 def now"}},
            {"the CPU now",
             timed_record(),
             {},
             {"products: timed by cuBLASLt on NVIDIA H200 with cuBLASLt 130100 abc before, on the "
              "CPU now"}},
            {"other algorithms",
             timed_record(),
             changed,
             {"products: 5 of 5 have another algorithm on NVIDIA H200 than before: 1024x512x64 nt "
              "bf16, 256x512x64 nt bf16, 512x512x64 nt bf16 and 2 more"}},
            {"a class that had none",
             timed_record(),
             more,
             {"products: 1 of 6 have another algorithm on NVIDIA H200 than before: 2048x512x64 nt "
              "bf16"}},
        };
        for (const Case& c : cases) {
            CAPTURE(c.what);
            CHECK(product_changes(c.before, c.now) == c.lines);
        }
    }

    TEST_CASE("the newest run beside this one that can be compared is found") {
        const TemporaryFolder folder;
        const ProductRecord now = timed_record();
        const std::string own = folder.path("now");
        fs::create_directories(own);
        CHECK_FALSE(find_neighbour_products(own, now).has_value());

        ProductRecord older = now;
        older.gpus[0].choices["256x512x64 nt bf16"] = choice_of(5);
        older.gpus[0].choices["4096x4096x4096 nt bf16"] = choice_of(5);
        write_run(folder.path("old"), older, 100);
        write_run(folder.path("oldest"), now, 200);
        write_run(own, now, 0);  // of an earlier start of this run
        write_run(folder.path("guessed"), guessed_record("NVIDIA H200", "130100 abc"), 10);
        ProductRecord elsewhere = now;
        elsewhere.gpus[0].gpu = "NVIDIA L40S";
        write_run(folder.path("elsewhere"), elsewhere, 5);
        write_run(folder.path("damaged"), now, 0);
        std::ofstream(folder.path("damaged") + "/products.json") << "{";

        const auto found = find_neighbour_products(own, now);
        REQUIRE(found.has_value());
        CHECK(found->run_folder == folder.path("old"));
        // As shells complete the name of a folder.
        const auto again = find_neighbour_products(own + "/", now);
        REQUIRE(again.has_value());
        CHECK(again->run_folder == folder.path("old"));
        // Of another drafter's classes nothing is said.
        CHECK(product_changes(found->record, now) ==
              std::vector<std::string>{"products: 1 of 5 have another algorithm on NVIDIA H200 "
                                       "than before: 256x512x64 nt bf16"});
    }
}

}  // namespace dflash::train
