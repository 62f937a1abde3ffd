// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/error.hpp>
#include <dflash/gpu/device.hpp>

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace dflash::gpu {
namespace {

constexpr int kBuilt = 13000;

CudaInventory machine_with(int num_gpus, int driver = kBuilt) {
    CudaInventory inventory{.versions = {.built = kBuilt, .loaded = kBuilt, .driver = driver}};
    for (int i = 0; i < num_gpus; ++i) {
        inventory.gpus.push_back("Model " + std::to_string(i));
    }
    if (num_gpus == 0) {
        inventory.failure = "cudaErrorNoDevice: no CUDA-capable device is detected";
    }
    return inventory;
}

/// The error of parse_devices(), or one of kind Internal if there is none.
Error error_of(const std::string& list, const CudaInventory& inventory) {
    try {
        parse_devices(list, inventory);
    } catch (const Error& error) {
        return error;
    }
    return Error(ErrorKind::Internal, {.what = "none", .where = {}, .cause = {}, .hint = {}});
}

bool contains(const Error& error, const std::string& text) {
    return std::string(error.what()).find(text) != std::string::npos;
}

TEST_SUITE("gpu.device") {
    TEST_CASE("parse_devices: numbers, ranges and all") {
        struct Case {
            std::string list;
            std::vector<int> ordinals;
        };

        const std::vector<Case> cases{{"0", {0}},
                                      {"7", {7}},
                                      {"0-7", {0, 1, 2, 3, 4, 5, 6, 7}},
                                      {"0,2,5-7", {0, 2, 5, 6, 7}},
                                      {"3-3", {3}},
                                      {"5,1", {5, 1}},
                                      {"all", {0, 1, 2, 3, 4, 5, 6, 7}}};
        for (const Case& c : cases) {
            CAPTURE(c.list);
            const auto devices = parse_devices(c.list, machine_with(8));
            REQUIRE(devices.size() == c.ordinals.size());
            for (std::size_t i = 0; i < devices.size(); ++i) {
                CHECK(devices[i].is_cuda());
                CHECK(devices[i].position == static_cast<int>(i));
                CHECK(devices[i].ordinal == c.ordinals[i]);
                CHECK(devices[i].name == "cuda:" + std::to_string(c.ordinals[i]));
                CHECK(devices[i].list_size == static_cast<int>(devices.size()));
            }
        }
    }

    TEST_CASE("parse_devices: a GPU that is listed again is another logical device") {
        const auto devices = parse_devices("0,0,1,0", machine_with(2));
        REQUIRE(devices.size() == 4);
        const std::vector<std::string> names{"cuda:0/0", "cuda:0/1", "cuda:1", "cuda:0/3"};
        for (std::size_t i = 0; i < devices.size(); ++i) {
            CHECK(devices[i].name == names[i]);
            CHECK(devices[i].position == static_cast<int>(i));
        }
    }

    TEST_CASE("parse_devices: CPU devices need no CUDA") {
        const auto devices = parse_devices("cpu:3");
        REQUIRE(devices.size() == 3);
        CHECK(!devices[2].is_cuda());
        CHECK(devices[2].name == "cpu:2");
        CHECK(devices[2].ordinal == 2);
        CHECK(devices[2].position == 2);
        CHECK(devices[2].list_size == 3);
    }

    TEST_CASE("parse_devices: a malformed list is a configuration error with got and expected") {
        for (const std::string list :
             {"",        ",",       "0,",         ",0",          "0,,1",  "a",
              "0-",      "-1",      "-",          "0--2",        "7-0",   "0-2-4",
              "0x1",     "1.5",     " 0",         "+1",          "ALL",   "cuda:0",
              "cpu",     "cpu:",    "cpu:0",      "cpu:-1",      "cpu:x", "cpu:2x",
              "cpu:257", "0,cpu:2", "0-99999999", "99999999999", "all,0", "cpu:99999999999"}) {
            CAPTURE(list);
            const Error error = error_of(list, machine_with(8));
            CHECK(error.kind() == ErrorKind::Config);
            CHECK(contains(error, "got \"" + list + "\", expected a list such as"));
        }
        CHECK(contains(error_of("7-0", machine_with(8)), "the range \"7-0\" falls"));
        CHECK(contains(error_of("0,cpu:2", machine_with(8)), "cannot be mixed"));
    }

    TEST_CASE("parse_devices: a GPU that is not there is named, and those that are") {
        const Error error = error_of("0-3,9", machine_with(2));
        CHECK(error.kind() == ErrorKind::Device);
        CHECK(contains(error, "got \"0-3,9\", but GPU 2, 3, 9 is not there"));
        CHECK(contains(error, "expected only 0 (Model 0), 1 (Model 1)"));
    }

    TEST_CASE("parse_devices: without a driver it says so and names the CPU") {
        for (const std::string list : {"all", "0", "0-7"}) {
            CAPTURE(list);
            const Error error = error_of(list, machine_with(0, /*driver=*/0));
            CHECK(error.kind() == ErrorKind::Device);
            CHECK(contains(error, "no NVIDIA driver"));
            CHECK(contains(error, "--gpus cpu:N"));
        }
    }

    TEST_CASE("parse_devices: a driver that is too old is named with the version needed") {
        const Error error = error_of("all", machine_with(0, /*driver=*/12040));
        CHECK(error.kind() == ErrorKind::Device);
        CHECK(contains(error, "got one for CUDA 12.4, expected CUDA 13.0 or newer"));
    }

    TEST_CASE("parse_devices: a driver without a GPU gives the runtime's own words") {
        const Error error = error_of("all", machine_with(0));
        CHECK(error.kind() == ErrorKind::Device);
        CHECK(contains(error, "no CUDA-capable device is detected"));
        CHECK(contains(error, "--gpus cpu:N"));
    }

    TEST_CASE("check_versions: the loaded runtime is that of the build, the driver new enough") {
        CHECK_NOTHROW(check_versions({.built = 13000, .loaded = 13000, .driver = 13000}));
        CHECK_NOTHROW(check_versions({.built = 13010, .loaded = 13010, .driver = 13000}));
        CHECK_NOTHROW(check_versions({.built = 13000, .loaded = 13000, .driver = 14020}));
        CHECK_NOTHROW(check_versions({.built = 13000, .loaded = 13000, .driver = 0}));
        CHECK_THROWS_WITH_AS(check_versions({.built = 13000, .loaded = 12080, .driver = 13000}),
                             doctest::Contains("got 12.8, expected 13.0"),
                             Error);
        CHECK_THROWS_AS(check_versions({.built = 13000, .loaded = 13000, .driver = 12090}), Error);
    }

    TEST_CASE("cuda_versions: the runtime in this process is the one of the build") {
        const CudaVersions versions = cuda_versions();
        CHECK(versions.built >= 13000);
        CHECK(versions.loaded == versions.built);
        CHECK_NOTHROW(check_versions(versions));
    }

    TEST_CASE("cuda_inventory: counts the GPUs and says why there are none") {
        const CudaInventory inventory = cuda_inventory();
        CHECK(static_cast<int>(inventory.gpus.size()) == cuda_device_count());
        CHECK(inventory.gpus.empty() == !inventory.failure.empty());
    }

    TEST_CASE("memory_of: a CPU device has the machine's memory") {
        const Device device = parse_devices("cpu:1").front();
        const DeviceMemory memory = memory_of(device);
        CHECK(memory.free_bytes > 0);
        CHECK(memory.total_bytes >= memory.free_bytes);
        CHECK(memory.total_bytes > 100LL << 20);
        CHECK(!describe(device).empty());
    }
}

}  // namespace
}  // namespace dflash::gpu
