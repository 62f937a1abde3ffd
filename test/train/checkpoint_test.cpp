// SPDX-License-Identifier: Apache-2.0
// What lies in a checkpoint's folder, what is noticed when it is read, and what stays of older
// ones.
#include "small_checkpoint.hpp"
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/io/json.hpp>
#include <dflash/train/checkpoint.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

void flip_bit(const std::string& path, std::int64_t at) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const int byte = file.get();
    REQUIRE(byte >= 0);
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x10));
    REQUIRE(file.good());
}

}  // namespace

TEST_SUITE("train.checkpoint") {
    TEST_CASE("a checkpoint is read back as it was saved") {
        const TemporaryFolder folder;
        CheckpointStore store(folder.path("run"), 2, 3);
        fs::create_directories(folder.path("run"));
        const Checkpoint saved = small_checkpoint(7);
        const SaveCost cost = store.save(saved, 2.5);
        CHECK(cost.bytes > 14 * saved.optimizer.master.numel());
        const Checkpoint read = store.load(std::nullopt);
        CHECK(read.progress.step == 7);
        CHECK(read.optimizer.steps == 5);
        CHECK(at::equal(read.optimizer.master, saved.optimizer.master));
        CHECK(at::equal(read.optimizer.exp_avg, saved.optimizer.exp_avg));
        CHECK(at::equal(read.optimizer.exp_avg_sq, saved.optimizer.exp_avg_sq));
        CHECK(read.identity == saved.identity);
        CHECK(store.acceptance_of(7) == 2.5);
        CHECK(fs::read_symlink(folder.path("run") + "/latest") == "step-000007");
        CHECK(names_in(folder.path("run")) == std::vector<std::string>{"latest", "step-000007"});
    }

    TEST_CASE("algorithms of products are kept with a checkpoint, and go with its state") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 1, 3);
        fs::create_directories(run);
        Checkpoint saved = small_checkpoint(4);
        saved.products = {
            .way = "timed",
            .gpus = {{.gpu = "NVIDIA H200",
                      .library = "130100 abc",
                      .choices = {{"256x512x1024 nt bf16",
                                   {.algorithm = kernels::GemmAlgorithm{.code = {1, 2, 3},
                                                                        .workspace_bytes = 64},
                                    .ms = 0.25,
                                    .guess_ms = 0.5}}}}}};
        store.save(saved, std::nullopt);
        CHECK(store.load(4).products == saved.products);
        const std::string path = store.folder_of(4) + "/state/products.json";
        flip_bit(path, 100);
        CHECK_THROWS_AS(store.load(4), Error);
        flip_bit(path, 100);

        store.save(small_checkpoint(5), std::nullopt);  // as one of an older program, or of the CPU
        CHECK(store.load(5).products.empty());
        CHECK_FALSE(fs::exists(store.folder_of(5) + "/state/products.json"));
        CHECK_FALSE(fs::exists(path));
    }

    TEST_CASE("a flipped bit in any file is a data error that names the file and the other steps") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 3, 3);
        fs::create_directories(run);
        for (const std::int64_t step : {3, 5, 9}) {
            store.save(small_checkpoint(step), 1.5);
        }
        const std::string step_folder = store.folder_of(5);
        std::vector<std::string> files;
        for (const auto& entry : fs::recursive_directory_iterator(step_folder)) {
            if (entry.is_regular_file()) {
                files.push_back(entry.path().string());
            }
        }
        REQUIRE(files.size() == 6);  // two of the draft, two of the state, acceptance, checksums
        for (const std::string& file : files) {
            const auto size = static_cast<std::int64_t>(fs::file_size(file));
            for (const std::int64_t at : {std::int64_t{0}, size / 2, size - 1}) {
                CAPTURE(file);
                CAPTURE(at);
                flip_bit(file, at);
                try {
                    store.load(5);
                    FAIL("expected an error");
                } catch (const Error& error) {
                    CHECK(error.kind() == ErrorKind::Data);
                    CHECK(error.parts().where.find(file) == 0);
                    CHECK(error.parts().hint.find("--step 3 or 9") != std::string::npos);
                }
                flip_bit(file, at);
            }
        }
        CHECK_NOTHROW(store.load(5));
    }

    TEST_CASE("a checkpoint without checksums is read, one whose list is gone is not") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 2, 3);
        fs::create_directories(run);
        store.save(small_checkpoint(4), std::nullopt);
        fs::remove(store.folder_of(4) + "/checksums.xxh64");
        CHECK_THROWS_AS(store.load(4), Error);
        // As it was written before there were checksums and skipped steps.
        const std::string path = store.folder_of(4) + "/state/state.json";
        std::string text = file_bytes(path);
        for (const std::string key : {"  \"checksums\"", "  \"optimizer_steps\""}) {
            const std::size_t at = text.find(key);
            REQUIRE(at != std::string::npos);
            const std::size_t end = text.find('\n', at);
            // The last member has no comma; the one before it then must have none either.
            if (text[end - 1] != ',') {
                text.erase(text.rfind(',', at), 1);
                text.erase(at - 1, end - at);
            } else {
                text.erase(at, end + 1 - at);
            }
        }
        std::ofstream(path, std::ios::binary) << text;
        const Checkpoint read = store.load(4);
        CHECK(read.optimizer.steps == 4);
        CHECK(at::equal(read.optimizer.master, small_checkpoint(4).optimizer.master));
    }

    TEST_CASE("the newest stay whole, and of the others the best drafts") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 2, 3);
        fs::create_directories(run);
        // The best come early and in the middle; some were never evaluated.
        const std::vector<std::pair<std::int64_t, std::optional<double>>> saves = {
            {1, 1.1},
            {2, 3.0},
            {3, std::nullopt},
            {4, 2.0},
            {5, 2.5},
            {6, 1.2},
            {7, 2.2},
            {8, 1.0}};
        for (const auto& [step, acceptance] : saves) {
            store.save(small_checkpoint(step), acceptance);
            // The one before is still whole when the new one has its name.
            CHECK(store.steps().back() == step);
            CHECK(std::ssize(store.steps()) == std::min<std::int64_t>(step, 2));
        }
        CHECK(store.steps() == std::vector<std::int64_t>{7, 8});
        CHECK(names_in(run) == std::vector<std::string>{"latest",
                                                        "step-000002",
                                                        "step-000004",
                                                        "step-000005",
                                                        "step-000007",
                                                        "step-000008"});
        for (const std::int64_t step : {2, 4, 5}) {
            CHECK(names_in(store.folder_of(step)) ==
                  std::vector<std::string>{"acceptance.json", "checksums.xxh64", "draft"});
            CHECK_NOTHROW(load_draft(store.folder_of(step) + "/draft"));
            CHECK(file_bytes(store.folder_of(step) + "/checksums.xxh64").find("state/") ==
                  std::string::npos);
        }
    }

    TEST_CASE("a save that fails leaves what was there, and may be repeated") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 1, 0);
        fs::create_directories(run);
        store.save(small_checkpoint(1), std::nullopt);

        struct Stop {};

        // Given up at every piece in turn, in writing and in reading back.
        int calls = 0;
        for (int stop_at = 1;; ++stop_at) {
            calls = 0;
            bool stopped = false;
            try {
                store.save(small_checkpoint(2), std::nullopt, [&] {
                    if (++calls == stop_at) {
                        throw Stop{};
                    }
                });
            } catch (const Stop&) {
                stopped = true;
            }
            if (!stopped) {
                CHECK(stop_at > 10);
                break;
            }
            CHECK(names_in(run) == std::vector<std::string>{"latest", "step-000001"});
            CHECK_NOTHROW(store.load(std::nullopt));
        }
        CHECK(names_in(run) == std::vector<std::string>{"latest", "step-000002"});
        CHECK(fs::read_symlink(run + "/latest") == "step-000002");
        CHECK_NOTHROW(store.load(2));
    }

    TEST_CASE("a draft of an earlier pass over the same step gives way to the new checkpoint") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 1, 3);
        fs::create_directories(run);
        store.save(small_checkpoint(1), 2.0);
        store.save(small_checkpoint(2), 2.0);
        REQUIRE_FALSE(fs::exists(store.folder_of(1) + "/state"));
        store.set_aside_after(1);
        store.save(small_checkpoint(1), 1.0);
        CHECK(store.steps() == std::vector<std::int64_t>{1});
        CHECK(store.acceptance_of(1) == 1.0);
        CHECK(names_in(run) ==
              std::vector<std::string>{"latest", "step-000001", "step-000002.superseded"});
    }

    TEST_CASE("a checkpoint without its state.json is damaged, not overlooked") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 2, 3);
        fs::create_directories(run);
        store.save(small_checkpoint(1), 2.0);
        store.save(small_checkpoint(2), 2.0);
        fs::remove(run + "/step-000002/state/state.json");
        try {
            store.load(std::nullopt);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Data);
            CHECK(error.parts().hint ==
                  "The checkpoint is damaged; resume from another one with --step 1");
        }
        CHECK_NOTHROW(store.load(1));
    }

    TEST_CASE("what others put where a checkpoint is to go is kept") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 1, 0);
        for (const char* name : {"/step-000002", "/step-000007"}) {
            fs::create_directories(run + name);
            std::ofstream(run + name + "/mine") << "x";
        }
        store.save(small_checkpoint(1), 2.0);
        store.save(small_checkpoint(2), 2.0);
        CHECK(fs::exists(run + "/step-000002.superseded/mine"));
        CHECK(fs::exists(run + "/step-000007/mine"));
        CHECK(store.steps() == std::vector<std::int64_t>{2});
    }

    TEST_CASE("leftovers of an interruption are removed, checkpoints are not") {
        const TemporaryFolder folder;
        const std::string run = folder.path("run");
        CheckpointStore store(run, 2, 3);
        fs::create_directories(run);
        store.save(small_checkpoint(1), 2.0);
        fs::create_directories(run + "/step-000002.tmp-77/state");
        fs::create_directories(run + "/step-000001.tmp-removed-77/draft");
        fs::create_directories(run + "/step-000001/state.removed");
        store.remove_leftovers();
        CHECK(names_in(run) == std::vector<std::string>{"latest", "step-000001"});
        CHECK_FALSE(fs::exists(run + "/step-000001/state.removed"));
        CHECK_NOTHROW(store.load(1));
    }
}

}  // namespace dflash::train
