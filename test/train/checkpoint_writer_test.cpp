// SPDX-License-Identifier: Apache-2.0
// The thread that writes checkpoints: what it does while the disk works, fails, and works again.
#include "small_checkpoint.hpp"
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/train/checkpoint_writer.hpp>

#include <condition_variable>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

/// Keeps the lines of the program while it lives.
class CaughtLog {
  public:
    CaughtLog()
        : former_(set_log_sink([this](LogLevel level, std::string_view line) {
              const std::lock_guard lock(mutex_);
              lines_.push_back((level == LogLevel::Warning ? "warning: " : "") + std::string(line));
          })) {}

    ~CaughtLog() { set_log_sink(std::move(former_)); }

    CaughtLog(const CaughtLog&) = delete;
    CaughtLog& operator=(const CaughtLog&) = delete;

    int count(const std::string& part) const {
        const std::lock_guard lock(mutex_);
        int found = 0;
        for (const std::string& line : lines_) {
            found += line.find(part) != std::string::npos ? 1 : 0;
        }
        return found;
    }

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> lines_;
    LogSink former_;
};

/// A run folder with a writer that tries again after milliseconds. The disk "fails" while a file
/// stands where the run folder should be.
struct Scene {
    explicit Scene(CheckpointWriterOptions options = {}) : store(run, 2, 3) {
        fs::create_directories(run + ".folder");
        point_run_to(run + ".folder");
        options.first_retry = 5ms;
        options.last_retry = 20ms;
        writer.emplace(store,
                       make_snapshot_buffers(model::num_parameters(small_drafter()),
                                             {.kind = gpu::DeviceKind::Cpu, .name = "cpu:0"}),
                       first_error,
                       options);
    }

    void save(std::int64_t step) {
        writer->wait_until_ready();
        Checkpoint checkpoint = small_checkpoint(step);
        checkpoint.products = products;
        OptimizerState& buffers = writer->begin(checkpoint, 1.5);
        const OptimizerState state = small_state(step);
        buffers.master.copy_(state.master);
        buffers.exp_avg.copy_(state.exp_avg);
        buffers.exp_avg_sq.copy_(state.exp_avg_sq);
        buffers.steps = state.steps;
        writer->write(0.25);
    }

    void break_disk() {
        std::ofstream(run + ".file") << "in the way";
        point_run_to(run + ".file");
    }

    void repair_disk() { point_run_to(run + ".folder"); }

    /// In one moment, whatever the writer does.
    void point_run_to(const std::string& target) {
        fs::create_symlink(target, run + ".new");
        fs::rename(run + ".new", run);
    }

    TemporaryFolder folder;
    std::string run = folder.path("run");
    FirstError first_error;
    CheckpointStore store;
    std::optional<CheckpointWriter> writer;
    const ProductRecord products{
        .way = "guessed", .gpus = {{.gpu = "NVIDIA H200", .library = "130100 abc", .choices = {}}}};
};

}  // namespace

TEST_SUITE("train.checkpoint_writer") {
    TEST_CASE("what was handed over is saved, and told with its cost") {
        std::vector<std::pair<std::int64_t, std::string>> told;
        Scene scene({.on_saved = [&](std::int64_t step, const std::string& folder) {
            CHECK(fs::exists(folder + "/state/state.json"));
            told.emplace_back(step, folder);
        }});
        scene.save(3);
        scene.writer->finish(1s);
        const std::vector<SaveReport> reports = scene.writer->take_reports();
        REQUIRE(reports.size() == 1);
        CHECK(reports[0].progress.step == 3);
        CHECK(reports[0].folder == scene.store.folder_of(3));
        CHECK(reports[0].stall_s == 0.25);
        CHECK(reports[0].cost.bytes > 0);
        CHECK(reports[0].tries == 1);
        CHECK(scene.writer->take_reports().empty());
        CHECK(told == std::vector{std::pair{std::int64_t{3}, scene.store.folder_of(3)}});
        const Checkpoint read = scene.store.load(3);
        CHECK(at::equal(read.optimizer.master, small_state(3).master));
        CHECK(read.optimizer.steps == 1);
        CHECK(read.identity == small_checkpoint(3).identity);
        CHECK(read.products == scene.products);
        // The same step again is no second save.
        scene.save(3);
        scene.writer->finish(1s);
        CHECK(scene.writer->take_reports().empty());
        CHECK(told.size() == 1);
    }

    TEST_CASE("a save under way is told from a writer that is ready") {
        std::mutex mutex;
        std::condition_variable changed;
        bool go_on = false;
        Scene scene({.on_saved = [&](std::int64_t, const std::string&) {
            std::unique_lock lock(mutex);
            changed.wait(lock, [&] { return go_on; });
        }});
        CHECK(scene.writer->ready());
        scene.save(1);
        CHECK_FALSE(scene.writer->ready());
        {
            const std::lock_guard lock(mutex);
            go_on = true;
        }
        changed.notify_all();
        scene.writer->wait_until_ready();
        CHECK(scene.writer->ready());
        CHECK(scene.store.steps() == std::vector<std::int64_t>{1});
    }

    TEST_CASE("a disk that fails is one warning, and the save succeeds when it works again") {
        const CaughtLog log;
        Scene scene;
        scene.save(1);
        scene.writer->finish(1s);
        scene.break_disk();
        scene.save(2);
        while (log.count("warning: step 2 cannot be saved") == 0) {
            std::this_thread::sleep_for(1ms);
        }
        std::this_thread::sleep_for(50ms);  // several tries
        CHECK(scene.writer->ready());
        scene.repair_disk();
        scene.writer->finish(10s);
        CHECK(log.count("warning: ") == 1);
        CHECK(log.count("Not a directory") == 1);
        CHECK(log.count("the disk can be written again: step 2 is saved") == 1);
        const std::vector<SaveReport> reports = scene.writer->take_reports();
        REQUIRE(reports.size() == 2);
        CHECK(reports[1].tries > 1);
        CHECK(at::equal(scene.store.load(2).optimizer.exp_avg, small_state(2).exp_avg));
    }

    TEST_CASE("while the disk fails a newer save takes the place of the older") {
        const CaughtLog log;
        Scene scene;
        scene.break_disk();
        scene.save(1);
        while (log.count("cannot be saved") == 0) {
            std::this_thread::sleep_for(1ms);
        }
        scene.save(2);
        CHECK(log.count("step 1 could not be saved; step 2 takes its place") == 1);
        scene.repair_disk();
        scene.writer->finish(10s);
        CHECK(scene.store.steps() == std::vector<std::int64_t>{2});
        CHECK(log.count("warning: ") == 1);
    }

    TEST_CASE("a last save that stays impossible is a storage error naming what stands") {
        const CaughtLog log;
        Scene scene;
        scene.save(1);
        scene.writer->finish(1s);
        scene.break_disk();
        scene.save(2);
        try {
            scene.writer->finish(100ms);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Storage);
            CHECK(error.parts().what.find("step 2 could not be saved in") == 0);
            CHECK(error.parts().what.find("over 100 ms") != std::string::npos);
            CHECK(error.parts().cause.find("Not a directory") != std::string::npos);
            CHECK(error.parts().hint.find("Nothing is saved yet") == 0);
        }
        scene.repair_disk();
        CHECK(scene.store.steps() == std::vector<std::int64_t>{1});
        CHECK_NOTHROW(scene.store.load(1));
    }

    TEST_CASE("an error of the program in a save ends the run") {
        Scene scene;
        scene.writer->wait_until_ready();
        // Buffers of another size than the configuration says.
        Checkpoint checkpoint = small_checkpoint(1);
        checkpoint.config.hidden_size = 32;
        scene.writer->begin(checkpoint, std::nullopt);
        scene.writer->write(0);
        try {
            scene.writer->finish(10s);
            FAIL("expected an error");
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::Internal);
        }
        CHECK(scene.first_error.failed());
        CHECK(scene.store.steps().empty());
    }

    TEST_CASE("what a callback throws is logged, and the save stands") {
        const CaughtLog log;
        Scene scene({.on_saved = [](std::int64_t, const std::string&) {
            throw std::runtime_error("no such command");
        }});
        scene.save(4);
        scene.writer->finish(1s);
        CHECK(log.count("warning: after the save of step 4: no such command") == 1);
        CHECK(scene.store.steps() == std::vector<std::int64_t>{4});
    }

    TEST_CASE("a run that fails elsewhere ends soon, whatever the writer waits for") {
        const CaughtLog log;
        const auto start = std::chrono::steady_clock::now();
        {
            Scene scene;
            scene.break_disk();
            scene.save(1);
            while (log.count("cannot be saved") == 0) {
                std::this_thread::sleep_for(1ms);
            }
            std::thread elsewhere([&] {
                std::this_thread::sleep_for(20ms);
                scene.first_error.store(std::make_exception_ptr(std::runtime_error("a worker")));
            });
            CHECK_THROWS_AS(scene.writer->finish(60s), std::runtime_error);
            elsewhere.join();
            CHECK_THROWS_AS(scene.writer->wait_until_ready(), std::runtime_error);
            scene.writer.reset();
            CHECK(log.count("warning: step 1 was not saved; nothing is saved yet") == 1);
        }
        CHECK(std::chrono::steady_clock::now() - start < 10s);
    }
}

}  // namespace dflash::train
