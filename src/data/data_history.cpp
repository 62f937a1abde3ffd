// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/data/data_history.hpp>
#include <dflash/io/json.hpp>

#include <charconv>
#include <fmt/format.h>

namespace dflash::data {
namespace {

constexpr std::string_view kWhere = "the history of the data";

[[noreturn]] void refuse(std::string what) {
    throw Error(ErrorKind::Data,
                {.what = std::move(what), .where = std::string(kWhere), .cause = {}, .hint = {}});
}

std::int64_t count_of(const io::Json& object, std::string_view key) {
    const std::int64_t count = object.require_integer(key, kWhere);
    if (count < 0) {
        refuse(fmt::format("{}: got {}, expected 0 or more", key, count));
    }
    return count;
}

FileContent file_of(const io::Json& object) {
    FileContent file{.bytes = count_of(object, "bytes"), .hash = 0};
    const std::string hash = object.require_string("hash", kWhere);
    const char* const end = hash.data() + hash.size();
    const auto parsed = std::from_chars(hash.data(), end, file.hash, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) {
        refuse("hash: expected 16 hexadecimal digits");
    }
    return file;
}

}  // namespace

std::string DataHistory::to_text() const {
    std::vector<io::Json> states;
    for (const DataState& state : states_) {
        std::vector<io::Json> files;
        for (const FileContent& file : state.files) {
            files.push_back(
                io::Json::object({{"bytes", io::Json::integer(file.bytes)},
                                  {"hash", io::Json::string(fmt::format("{:016x}", file.hash))}}));
        }
        states.push_back(io::Json::object({{"first_epoch", io::Json::integer(state.first_epoch)},
                                           {"rows", io::Json::integer(state.num_rows)},
                                           {"files", io::Json::array(std::move(files))}}));
    }
    return io::Json::array(std::move(states)).dump();
}

DataHistory DataHistory::parse(const std::string& text) {
    const io::Json json = io::Json::parse(text, kWhere);
    std::vector<DataState> states;
    for (const io::Json& object : json.is_array() ? json.items() : std::vector<io::Json>{}) {
        DataState state{.first_epoch = count_of(object, "first_epoch"),
                        .num_rows = count_of(object, "rows"),
                        .files = {}};
        const io::Json* files = object.find("files");
        if (files == nullptr || !files->is_array() || files->items().empty()) {
            refuse("files: expected a list that is not empty");
        }
        for (const io::Json& file : files->items()) {
            state.files.push_back(file_of(file));
        }
        states.push_back(std::move(state));
    }
    if (states.empty()) {
        refuse("expected a list that is not empty");
    }
    DataHistory history(std::move(states.front()));
    for (std::size_t i = 1; i < states.size(); ++i) {
        if (states[i].first_epoch < history.last().first_epoch ||
            states[i].num_rows < history.last().num_rows) {
            refuse("expected states whose epochs and rows do not fall");
        }
        history.extend(std::move(states[i]));
    }
    return history;
}

void DataHistory::extend(DataState state) {
    DFLASH_CHECK(state.first_epoch >= last().first_epoch && state.num_rows >= last().num_rows,
                 "a state of {} rows from epoch {} behind one of {} rows from epoch {}",
                 state.num_rows,
                 state.first_epoch,
                 last().num_rows,
                 last().first_epoch);
    states_.push_back(std::move(state));
}

}  // namespace dflash::data
