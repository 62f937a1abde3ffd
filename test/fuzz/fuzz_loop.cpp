// SPDX-License-Identifier: Apache-2.0
#include "fuzz_loop.hpp"

#include "mutation.hpp"

#include <dflash/core/error.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <optional>
#include <unistd.h>

// Of the sanitizers' runtime, if the program has one.
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace dflash::test {

namespace {

constexpr unsigned kHangSeconds = 30;
constexpr std::string_view kJsonAlphabet = "{}[]\",:0123456789.eE+-\\untrfals \n\t_";

// Where the loop is, for handlers that may not allocate.
std::atomic<const char*> current_target = "";
std::atomic<std::uint64_t> current_round = 0;

void write_text(std::string_view text) {
    // Nothing can be done if it fails.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

void write_place() {
    std::array<char, 20> digits{};
    std::size_t begin = digits.size();
    std::uint64_t round = current_round;
    do {
        digits[--begin] = static_cast<char>('0' + round % 10);
        round /= 10;
    } while (round > 0);
    write_text("\nfuzz target ");
    const char* const name = current_target;
    write_text({name, std::strlen(name)});
    write_text(", DFLASH_FUZZ_ROUND=");
    write_text({digits.data() + begin, digits.size() - begin});
    write_text("\n");
}

void on_signal(int signal) {
    write_text(signal == SIGALRM ? "\nhang" : "\ncrash");
    write_place();
    ::_exit(1);
}

void install_handlers() {
    std::signal(SIGALRM, on_signal);
    if (__sanitizer_set_death_callback != nullptr) {
        __sanitizer_set_death_callback(write_place);
        return;
    }
    for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGBUS}) {
        std::signal(signal, on_signal);
    }
}

std::optional<std::uint64_t> number_of(const char* variable) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? std::nullopt
                           : std::optional<std::uint64_t>(std::strtoull(text, nullptr, 10));
}

// Whether the input was read; throws what the reader may not throw.
bool is_read(const FuzzTarget& target, const std::string& input) {
    try {
        target.read(input);
        return true;
    } catch (const Error& error) {
        if (error.kind() == ErrorKind::Internal) {
            throw;
        }
        return false;
    }
}

// Every value of a tree with a way to it, in the order of the text.
void collect(io::Json& json, std::vector<io::Json*>& nodes) {
    nodes.push_back(&json);
    if (json.is_array()) {
        for (io::Json& item : json.items()) {
            collect(item, nodes);
        }
    } else if (json.is_object()) {
        for (auto& [key, member] : json.members()) {
            collect(member, nodes);
        }
    }
}

// A value somewhere in the tree: as likely a setting at the top as one of thousands of entries
// below.
io::Json& pick(io::Json& root, RandomStream& random) {
    io::Json* node = &root;
    while (random.below(4) != 0) {
        if (node->is_array() && !node->items().empty()) {
            node = &node->items()[random.below(node->items().size())];
        } else if (node->is_object() && !node->members().empty()) {
            node = &node->members()[random.below(node->members().size())].second;
        } else {
            break;
        }
    }
    return *node;
}

io::Json odd_value(RandomStream& random) {
    static const std::array<std::string_view, 28> kTexts = {"null",
                                                            "true",
                                                            "false",
                                                            "0",
                                                            "-1",
                                                            "1",
                                                            "2.5",
                                                            "1e308",
                                                            "-1e308",
                                                            "1e400",
                                                            "0.0",
                                                            "-0",
                                                            "9223372036854775807",
                                                            "-9223372036854775808",
                                                            "18446744073709551616",
                                                            "2147483647",
                                                            "4294967296",
                                                            "123456789012345678901234567890",
                                                            "\"\"",
                                                            "\"\\u0000\"",
                                                            "\"text\"",
                                                            "\" \"",
                                                            "[]",
                                                            "{}",
                                                            "[[]]",
                                                            "[null]",
                                                            "{\"\":{}}",
                                                            "\"\\ud83d\\ude00\""};
    if (random.below(20) == 0) {
        std::string deep;
        const std::uint64_t depth = 1 + random.below(900);
        deep.append(depth, '[').append(depth, ']');
        return io::Json::parse(deep, "");
    }
    if (random.below(20) == 0) {
        return io::Json::string(std::string(random.below(5000), 'x'));
    }
    return io::Json::parse(kTexts[random.below(kTexts.size())], "");
}

void change_members(io::Json& json, const std::vector<io::Json*>& nodes, RandomStream& random) {
    auto& members = json.members();
    if (members.empty()) {
        return;
    }
    const std::size_t i = random.below(members.size());
    switch (random.below(4)) {
        case 0:
            members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        case 1:
            members.push_back(members[i]);
            break;
        case 2:
            members[i].first = members[random.below(members.size())].first;
            break;
        default: {
            io::Json other = *nodes[random.below(nodes.size())];
            members[i].second = std::move(other);
        }
    }
}

void change_items(io::Json& json, const std::vector<io::Json*>& nodes, RandomStream& random) {
    auto& items = json.items();
    if (items.empty() || random.below(3) == 0) {
        items.push_back(odd_value(random));
        return;
    }
    const auto at = items.begin() + static_cast<std::ptrdiff_t>(random.below(items.size()));
    if (random.below(2) == 0) {
        items.erase(at);
    } else {
        io::Json other = *nodes[random.below(nodes.size())];
        *at = std::move(other);
    }
}

}  // namespace

io::Json mutate_json(const io::Json& json, RandomStream& random) {
    io::Json changed = json;
    for (std::uint64_t n = 1 + random.below(3); n > 0; --n) {
        std::vector<io::Json*> nodes;
        collect(changed, nodes);
        io::Json& node = pick(changed, random);
        if (node.is_object() && random.below(3) != 0) {
            change_members(node, nodes, random);
        } else if (node.is_array() && random.below(3) != 0) {
            change_items(node, nodes, random);
        } else if (node.is_string() && random.below(2) == 0) {
            node = io::Json::string(
                mutate(node.as_string(), "<|>_/\\{}()[]?*+^$ \naA0.,:'\"", random));
        } else {
            node = odd_value(random);
        }
    }
    return changed;
}

std::string mutate_json_text(const std::vector<std::string>& seeds, RandomStream& random) {
    std::string text = seeds[random.below(seeds.size())];
    const std::uint64_t how = random.below(4);
    if (how != 0) {
        text = mutate_json(io::Json::parse(text, "seed"), random).dump();
    }
    return how <= 1 ? mutate(text, kJsonAlphabet, random) : text;
}

std::string read_seed(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    REQUIRE_MESSAGE(in.good(), path);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void fuzz(const FuzzTarget& target) {
    using Clock = std::chrono::steady_clock;
    const std::uint64_t seed = number_of("DFLASH_FUZZ_SEED").value_or(1);
    const auto only = number_of("DFLASH_FUZZ_ROUND");
    const auto end =
        Clock::now() + std::chrono::seconds(number_of("DFLASH_FUZZ_SECONDS").value_or(2));
    current_target = target.name.data();
    install_handlers();
    std::uint64_t num_read = 0;
    std::uint64_t num_refused = 0;
    std::uint64_t round = only.value_or(0);
    // The first rounds are tried whatever the time, so that a slow machine tries something, too.
    while (round < 50 || Clock::now() < end) {
        current_round = round;
        RandomStream random(seed, Purpose::Test, 0, round);
        const std::string input = target.make_input(random);
        CAPTURE(round);
        ::alarm(kHangSeconds);
        try {
            ++(is_read(target, input) ? num_read : num_refused);
        } catch (const std::exception& error) {
            FAIL_CHECK(fmt::format("{}: {}", target.name, error.what()));
        }
        ::alarm(0);
        if (only) {
            return;
        }
        ++round;
    }
    MESSAGE(target.name, ": ", num_read, " read, ", num_refused, " refused");
    CHECK(num_read > 0);
    CHECK(num_refused > 0);
}

}  // namespace dflash::test
