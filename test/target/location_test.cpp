// SPDX-License-Identifier: Apache-2.0
#include "model_folder.hpp"

#include <dflash/target/config.hpp>

#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <string>

namespace dflash::target {
namespace {

using testing::error_of;
using testing::TempFolder;

// Sets the three variables that decide where the cache lies, and puts the former values back.
class CacheEnvironment : NonCopyable {
  public:
    CacheEnvironment(const std::string& hub_cache,
                     const std::string& hf_home,
                     const std::string& home)
        : hub_cache_("HF_HUB_CACHE", hub_cache),
          hf_home_("HF_HOME", hf_home),
          home_("HOME", home) {}

  private:
    class Variable : NonCopyable {
      public:
        Variable(const char* name, const std::string& value) : name_(name) {
            if (const char* former = std::getenv(name)) {
                former_ = former;
                was_set_ = true;
            }
            setenv(name, value.c_str(), 1);
        }

        ~Variable() {
            if (was_set_) {
                setenv(name_, former_.c_str(), 1);
            } else {
                unsetenv(name_);
            }
        }

      private:
        const char* name_;
        std::string former_;
        bool was_set_ = false;
    };

    Variable hub_cache_;
    Variable hf_home_;
    Variable home_;
};

void add_model(const TempFolder& root,
               const std::string& hub,
               const std::string& folder,
               const std::string& revision) {
    root.write(hub + "/" + folder + "/refs/main", revision);
    root.write(hub + "/" + folder + "/snapshots/" + revision + "/config.json", "{}");
}

}  // namespace

TEST_SUITE("target.location") {
    TEST_CASE("find_target: takes a folder as it is and names it by its last part") {
        const TargetLocation plain = find_target("test/golden/targets/T1");
        CHECK(plain.folder == "test/golden/targets/T1");
        CHECK(plain.name == "T1");
        CHECK(plain.revision.empty());
        CHECK(find_target("test/golden/targets/T1/").name == "T1");
        CHECK(find_target("test/golden/targets/T1/.").name == "T1");
    }

    TEST_CASE("find_target: looks an id up in the three places in order") {
        const TempFolder root;
        add_model(root, "cache", "models--Org--One", "aaaa1111");
        add_model(root, "home/hub", "models--Org--One", "bbbb2222");
        add_model(root, "home/hub", "models--Org--Two.5-B_x", "cccc3333");
        add_model(root, "user/.cache/huggingface/hub", "models--gpt2", "dddd4444");
        const CacheEnvironment environment(
            root.string() + "/cache", root.string() + "/home", root.string() + "/user");

        struct Case {
            const char* id;
            const char* folder;
            const char* name;
            const char* revision;
        };

        for (const Case& c :
             {Case{"Org/One", "/cache/models--Org--One/snapshots/aaaa1111", "One", "aaaa1111"},
              Case{"Org/Two.5-B_x",
                   "/home/hub/models--Org--Two.5-B_x/snapshots/cccc3333",
                   "Two.5-B_x",
                   "cccc3333"},
              Case{"gpt2",
                   "/user/.cache/huggingface/hub/models--gpt2/snapshots/dddd4444",
                   "gpt2",
                   "dddd4444"}}) {
            CAPTURE(c.id);
            const TargetLocation found = find_target(c.id);
            CHECK(found.folder == root.string() + c.folder);
            CHECK(found.name == c.name);
            CHECK(found.revision == c.revision);
            // The folder of a snapshot given as such is known by the same name.
            const TargetLocation again = find_target(found.folder);
            CHECK(again.name == c.name);
            CHECK(again.revision == c.revision);
        }
    }

    TEST_CASE("find_target: what is not there is reported with what the cache holds") {
        const TempFolder root;
        add_model(root, "cache", "models--Qwen--Qwen3-8B", "aaaa1111");
        add_model(root, "cache", "models--Org--Other", "aaaa1111");
        root.write("cache/datasets--Org--Data/refs/main", "x");
        const CacheEnvironment environment(root.string() + "/cache", "", root.string());
        const auto error = error_of([] { find_target("Qwen/Qwen3-8b"); });
        REQUIRE(error);
        CHECK(error->kind() == ErrorKind::Config);
        const std::string message = error->what();
        CAPTURE(message);
        CHECK(message.find("Org/Other, Qwen/Qwen3-8B") != std::string::npos);
        CHECK(message.find("Did you mean Qwen/Qwen3-8B?") != std::string::npos);
        CHECK(message.find("hf download Qwen/Qwen3-8b") != std::string::npos);
        CHECK(message.find(root.string() + "/cache") != std::string::npos);
        CHECK(message.find("Data") == std::string::npos);
    }

    TEST_CASE("find_target: an empty cache is said to be empty") {
        const TempFolder root;
        const CacheEnvironment environment("", "", root.string());
        const auto error = error_of([] { find_target("Qwen/Qwen3-8B"); });
        REQUIRE(error);
        CHECK(error->parts().cause.find("no models") != std::string::npos);
    }

    TEST_CASE("find_target: an incomplete entry of the cache is refused") {
        const TempFolder root;
        root.write("cache/models--Org--NoRef/snapshots/aaaa/config.json", "{}");
        root.write("cache/models--Org--NoSnapshot/refs/main", "bbbb");
        root.write("cache/models--Org--Hostile/refs/main", "../../..");
        const CacheEnvironment environment(root.string() + "/cache", "", root.string());
        for (const char* id : {"Org/NoRef", "Org/NoSnapshot", "Org/Hostile"}) {
            CAPTURE(id);
            const auto error = error_of([&] { find_target(id); });
            REQUIRE(error);
            CHECK(error->kind() == ErrorKind::Config);
            CHECK(error->parts().hint.find(std::string("hf download ") + id) != std::string::npos);
        }
    }

    TEST_CASE("find_target: text that is neither a path nor an id is refused") {
        const TempFolder root;
        root.write("file", "x");
        const CacheEnvironment environment(root.string(), "", root.string());
        for (const std::string& text : {std::string("/no/such/folder"),
                                        std::string("a/b/c"),
                                        std::string("../x"),
                                        std::string("Org/Na me"),
                                        std::string(),
                                        root.string() + "/file"}) {
            CAPTURE(text);
            const auto error = error_of([&] { find_target(text); });
            REQUIRE(error);
            CHECK(error->kind() == ErrorKind::Config);
        }
    }
}

}  // namespace dflash::target
