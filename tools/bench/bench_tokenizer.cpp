// SPDX-License-Identifier: Apache-2.0
// Times the tokenizer on a text, on one core and on all, and on long pieces.
//
//     bench_tokenizer TOKENIZER_JSON TEXT [--threads N] [--runs N] [--document BYTES]
//
// The text is cut at empty lines into documents of at least 4096 bytes, each one call of encode().
// Figures are medians over the runs; a first run, in which the table of whole tokens fills, is not
// counted. bench_tokenizer_hf.py does the same with HF tokenizers, and prints the same checksum
// where the ids are the same.
#include <dflash/core/error.hpp>
#include <dflash/data/tokenizer.hpp>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace dflash::data {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string tokenizer;
    std::string text;
    int threads = static_cast<int>(std::thread::hardware_concurrency());
    int runs = 5;
    std::size_t document_bytes = 4096;
};

[[noreturn]] void refuse(const std::string& what) {
    throw Error(ErrorKind::Config,
                {.what = what,
                 .where = "command line",
                 .cause = {},
                 .hint = "bench_tokenizer TOKENIZER_JSON TEXT [--threads N] [--runs N] "
                         "[--document BYTES]"});
}

int positive(std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) {
        refuse(fmt::format("got '{}', expected a positive integer", text));
    }
    return value;
}

Options read_options(const std::vector<std::string_view>& arguments) {
    Options options;
    std::vector<std::string_view> plain;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (!arguments[i].starts_with("--")) {
            plain.push_back(arguments[i]);
            continue;
        }
        if (i + 1 == arguments.size()) {
            refuse(fmt::format("{} without a value", arguments[i]));
        }
        const int value = positive(arguments[i + 1]);
        if (arguments[i] == "--threads") {
            options.threads = value;
        } else if (arguments[i] == "--runs") {
            options.runs = value;
        } else if (arguments[i] == "--document") {
            options.document_bytes = static_cast<std::size_t>(value);
        } else {
            refuse(fmt::format("unknown option {}", arguments[i]));
        }
        ++i;
    }
    if (plain.size() != 2) {
        refuse(fmt::format("{} arguments, expected 2", plain.size()));
    }
    options.tokenizer = plain[0];
    options.text = plain[1];
    return options;
}

std::string read_text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    if (!in || text.empty()) {
        refuse(fmt::format("cannot read {}, or it is empty", path));
    }
    return text;
}

std::vector<std::string_view> cut(std::string_view text, std::size_t least) {
    std::vector<std::string_view> documents;
    while (!text.empty()) {
        const std::size_t gap = text.find("\n\n", std::min(least, text.size()));
        const std::size_t size = gap == std::string_view::npos ? text.size() : gap + 2;
        documents.push_back(text.substr(0, size));
        text.remove_prefix(size);
    }
    return documents;
}

double seconds(const std::function<void()>& work) {
    const auto begin = Clock::now();
    work();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median_seconds(int runs, const std::function<void()>& work) {
    std::vector<double> times;
    for (int i = 0; i <= runs; ++i) {
        times.push_back(seconds(work));
    }
    times.erase(times.begin());
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

struct Counted {
    std::uint64_t tokens = 0;
    std::uint64_t checksum = 0;  // of the ids, in order, over documents in any order
};

Counted encode_document(const Tokenizer& tokenizer, std::string_view document, bool with_ranges) {
    Counted counted;
    const Encoding encoding = tokenizer.encode(document, with_ranges);
    counted.tokens = encoding.ids.size();
    for (const TokenId id : encoding.ids) {
        counted.checksum = counted.checksum * 1000003 + static_cast<std::uint64_t>(id);
    }
    return counted;
}

Counted encode_all(const Tokenizer& tokenizer,
                   const std::vector<std::string_view>& documents,
                   int num_threads,
                   bool with_ranges) {
    std::atomic<std::size_t> next = 0;
    std::atomic<std::uint64_t> tokens = 0;
    std::atomic<std::uint64_t> checksum = 0;
    const auto work = [&] {
        for (std::size_t i = next++; i < documents.size(); i = next++) {
            const Counted counted = encode_document(tokenizer, documents[i], with_ranges);
            tokens += counted.tokens;
            checksum += counted.checksum;
        }
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < num_threads; ++i) {
        threads.emplace_back(work);
    }
    work();
    for (std::thread& thread : threads) {
        thread.join();
    }
    return {.tokens = tokens, .checksum = checksum};
}

void time_text(const Tokenizer& tokenizer, const Options& options) {
    const std::string text = read_text(options.text);
    const std::vector<std::string_view> documents = cut(text, options.document_bytes);
    const double mb = static_cast<double>(text.size()) / 1e6;
    for (const auto& [threads, with_ranges] :
         {std::pair(1, false), std::pair(1, true), std::pair(options.threads, false)}) {
        Counted counted;
        const double time = median_seconds(options.runs, [&, t = threads, r = with_ranges] {
            counted = encode_all(tokenizer, documents, t, r);
        });
        fmt::print(
            "{:.1f} MB in {} documents, {} thread{}{}: {:.1f} MB/s, {:.2f} million tokens/s "
            "({} tokens, checksum {:016x})\n",
            mb,
            documents.size(),
            threads,
            threads == 1 ? "" : "s",
            with_ranges ? ", with ranges" : "",
            mb / time,
            static_cast<double>(counted.tokens) / time / 1e6,
            counted.tokens,
            counted.checksum);
    }
}

std::string repeated(std::string_view unit, std::size_t bytes) {
    std::string text;
    text.reserve(bytes + unit.size());
    while (text.size() < bytes) {
        text += unit;
    }
    return text;
}

std::string letters(std::size_t bytes) {
    std::mt19937 random(1);
    std::string text(bytes, 'a');
    for (char& c : text) {
        c = static_cast<char>('a' + random() % 26);
    }
    return text;
}

// Each at two lengths: time that grows faster than the text would show.
void time_long_pieces(const Tokenizer& tokenizer, const Options& options) {
    constexpr std::size_t kMebi = std::size_t{1} << 20U;

    struct Case {
        std::string_view name;
        std::function<std::string(std::size_t)> make;
    };

    for (const Case& c : std::vector<Case>{
             {"one letter", [](std::size_t n) { return std::string(n, 'a'); }},
             {"a word of random letters", letters},
             {"spaces", [](std::size_t n) { return std::string(n, ' '); }},
             {"spaces and a letter", [](std::size_t n) { return std::string(n, ' ') + "x"; }},
             {"line feeds", [](std::size_t n) { return std::string(n, '\n'); }},
             {"digits", [](std::size_t n) { return std::string(n, '7'); }},
             {"a combining mark", [](std::size_t n) { return repeated("\xcc\x81", n); }},
             {"emoji", [](std::size_t n) { return repeated("\xf0\x9f\x98\x80", n); }},
             {"half a special token", [](std::size_t n) { return repeated("<|im_", n); }},
         }) {
        double times[2] = {};
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
            const std::string text = c.make((i + 1) * kMebi);
            times[i] = median_seconds(std::min(options.runs, 3), [&] { tokenizer.encode(text); });
        }
        fmt::print(
            "{}: 1 MiB in {:.0f} ms, 2 MiB in {:.0f} ms\n", c.name, 1e3 * times[0], 1e3 * times[1]);
    }
}

void run(const Options& options) {
    const auto begin = Clock::now();
    const Tokenizer tokenizer = Tokenizer::from_file(options.tokenizer);
    fmt::print("loaded in {:.2f} s\n", std::chrono::duration<double>(Clock::now() - begin).count());
    time_text(tokenizer, options);
    time_long_pieces(tokenizer, options);
}

}  // namespace
}  // namespace dflash::data

int main(int argc, char** argv) {
    try {
        dflash::data::run(dflash::data::read_options({argv + 1, argv + argc}));
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "bench_tokenizer: {}\n", error.what());
        return 2;
    }
}
