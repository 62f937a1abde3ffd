// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/io/storage_error.hpp>
#include <dflash/train/response_journal.hpp>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fmt/format.h>
#include <string_view>
#include <unistd.h>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRowKey = R"("row": )";

std::string journal_path(const std::string& folder) {
    return (fs::path(folder) / "answers.jsonl").string();
}

[[noreturn]] void refuse(ErrorKind kind, std::string what, std::string where, std::string hint) {
    throw Error(
        kind,
        {.what = std::move(what), .where = std::move(where), .cause = {}, .hint = std::move(hint)});
}

void compare(const JournalLine& header,
             const ResponseIdentity& identity,
             const std::string& folder,
             const std::string& output) {
    for (const auto& [name, was] : response_differences(header.json, identity, header.where)) {
        const auto now = std::ranges::find(identity, name, &ResponseIdentity::value_type::first);
        refuse(ErrorKind::Config,
               fmt::format("answers of another start are there, made with {} {}; now it is {}",
                           name,
                           was,
                           now->second),
               folder,
               fmt::format("Go on with the settings of that start, write to another --output, "
                           "or remove the folder: rm -r {}",
                           shell_word(ResponseJournal::folder_of(output))));
    }
}

std::int64_t integer_of(const io::Json& line, std::string_view key) {
    const io::Json* value = line.find(key);
    return value != nullptr && value->is_number() ? value->to_integer().value_or(-1) : -1;
}

bool flag_of(const io::Json& line, std::string_view key) {
    const io::Json* value = line.find(key);
    return value != nullptr && value->is_bool() && value->as_bool();
}

std::string line_of(const ResponseEntry& entry) {
    std::string line = fmt::format(R"({{"task": {}, "tokens": {})", entry.task, entry.tokens);
    line += entry.cut ? R"(, "cut": true)" : "";
    line += entry.inexact ? R"(, "inexact": true)" : "";
    // The row is last, so that it can be cut out as it is.
    line += entry.row.empty()
                ? fmt::format(R"(, "dropped": {}}})", io::Json::string(entry.dropped).dump())
                : fmt::format(R"(, {}{}}})", kRowKey, entry.row);
    return line + "\n";
}

}  // namespace

std::string response_header(const ResponseIdentity& identity) {
    io::Json members = io::Json::object();
    for (const auto& [name, value] : identity) {
        members.set(name, io::Json::string(value));
    }
    return io::Json::object({{"answers", std::move(members)}}).dump() + "\n";
}

std::vector<std::pair<std::string, std::string>> response_differences(
    const io::Json& header, const ResponseIdentity& identity, const std::string& where) {
    const io::Json* saved = header.find("answers");
    if (saved == nullptr || !saved->is_object()) {
        refuse(ErrorKind::Data,
               "the first line is none of a journal of answers",
               where,
               "Remove its folder to begin anew");
    }
    std::vector<std::pair<std::string, std::string>> differences;
    for (const auto& [name, value] : identity) {
        const io::Json* before = saved->find(name);
        const std::string was =
            before != nullptr && before->is_string() ? before->as_string() : "not set";
        if (was != value) {
            differences.emplace_back(name, was);
        }
    }
    return differences;
}

void ResponseJournal::check_output(const std::string& output) {
    if (fs::exists(output)) {
        refuse(ErrorKind::Config,
               fs::is_directory(output) ? "the output is a folder, expected a file"
                                        : "the output is there already",
               output,
               "Name another --output, or remove the file");
    }
    fs::path folder = fs::absolute(output).parent_path();
    while (!fs::exists(folder) && folder.has_parent_path() && folder != folder.parent_path()) {
        folder = folder.parent_path();
    }
    if (!fs::is_directory(folder)) {
        refuse(ErrorKind::Storage,
               fmt::format("the output cannot be written: {} is no folder", folder.string()),
               output,
               "Name another --output");
    }
    if (::access(folder.c_str(), W_OK | X_OK) != 0) {
        throw io::storage_error(
            "the output cannot be written to its folder", folder.string(), errno);
    }
}

ResponseJournal::ResponseJournal(const std::string& output,
                                 const ResponseIdentity& identity,
                                 std::int64_t num_tasks)
    : output_(output),
      folder_(folder_of(output)),
      offsets_(static_cast<std::size_t>(num_tasks), -1) {
    check_output(output);
    io::create_folders(folder_);
    lock_.emplace(folder_);
    const std::string path = journal_path(folder_);
    const std::int64_t size =
        JournalFile::read(path, [&](const JournalLine& line) { read(line, identity); });
    file_.emplace(path, size, response_header(identity));
    resumed_ = num_done_;
}

void ResponseJournal::read(const JournalLine& line, const ResponseIdentity& identity) {
    if (line.offset == 0) {
        compare(line, identity, folder_, output_);
        return;
    }
    ResponseEntry entry;
    entry.task = integer_of(line.json, "task");
    if (entry.task < 0 || entry.task >= static_cast<std::int64_t>(offsets_.size()) ||
        done(entry.task)) {
        refuse(ErrorKind::Data,
               fmt::format("got answer {}, expected one below {} that is not there yet",
                           entry.task,
                           offsets_.size()),
               line.where,
               "The journal is damaged; remove its folder to begin anew");
    }
    const io::Json* dropped = line.json.find("dropped");
    entry.dropped = dropped != nullptr && dropped->is_string() ? dropped->as_string() : "";
    entry.row = dropped == nullptr ? "there" : "";
    entry.tokens = std::max<std::int64_t>(0, integer_of(line.json, "tokens"));
    entry.cut = flag_of(line.json, "cut");
    entry.inexact = flag_of(line.json, "inexact");
    count(entry, line.offset);
}

void ResponseJournal::count(const ResponseEntry& entry, std::int64_t offset) {
    offsets_[static_cast<std::size_t>(entry.task)] = offset;
    ++num_done_;
    sums_.add(entry);
}

void ResponseSums::add(const ResponseEntry& entry) {
    tokens += entry.tokens;
    cut += entry.cut ? 1 : 0;
    if (entry.row.empty()) {
        ++dropped[entry.dropped];
    } else {
        ++answered;
        inexact += entry.inexact ? 1 : 0;
    }
}

std::int64_t ResponseSums::done() const {
    std::int64_t sum = answered;
    for (const auto& [reason, count] : dropped) {
        sum += count;
    }
    return sum;
}

void ResponseJournal::add(const ResponseEntry& entry) {
    DFLASH_CHECK(!done(entry.task), "answer {} came twice", entry.task);
    count(entry, file_->append(line_of(entry)));
}

void ResponseJournal::publish(const std::function<bool(Piece&)>& next) {
    file_->sync();
    {
        const io::MappedFile file(journal_path(folder_));
        const std::string_view text = file.text();
        io::AtomicFile output(output_);
        std::string buffer;
        for (Piece piece; next(piece); piece = {}) {
            if (piece.task >= 0) {
                DFLASH_CHECK(done(piece.task), "answer {} is missing", piece.task);
                const auto begin =
                    static_cast<std::size_t>(offsets_[static_cast<std::size_t>(piece.task)]);
                const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
                const std::size_t row = line.find(kRowKey);
                if (row == std::string_view::npos) {
                    continue;  // dropped
                }
                const std::size_t row_begin = row + kRowKey.size();
                buffer += line.substr(row_begin, line.size() - 1 - row_begin);
            } else {
                buffer += piece.line;
            }
            buffer += '\n';
            if (buffer.size() > (1U << 20U)) {
                output.write(buffer);
                buffer.clear();
            }
        }
        output.write(buffer);
        output.commit();
    }
    file_->close();
    fs::remove_all(folder_);
}

}  // namespace dflash::train
