// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/mapped_file.hpp>
#include <dflash/train/response_journal.hpp>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kSyncEvery(5);
constexpr std::string_view kRowKey = R"("row": )";

std::string journal_path(const std::string& folder) {
    return (fs::path(folder) / "answers.jsonl").string();
}

[[noreturn]] void refuse(ErrorKind kind, std::string what, std::string where, std::string hint) {
    throw Error(
        kind,
        {.what = std::move(what), .where = std::move(where), .cause = {}, .hint = std::move(hint)});
}

std::string header_line(const ResponseIdentity& identity) {
    io::Json members = io::Json::object();
    for (const auto& [name, value] : identity) {
        members.set(name, io::Json::string(value));
    }
    return io::Json::object({{"answers", std::move(members)}}).dump() + "\n";
}

void compare(const io::Json& header,
             const ResponseIdentity& identity,
             const std::string& folder,
             const std::string& output) {
    const io::Json* saved = header.find("answers");
    if (saved == nullptr || !saved->is_object()) {
        refuse(ErrorKind::Data,
               "the first line is none of a journal of answers",
               journal_path(folder),
               "Remove the folder to begin anew");
    }
    for (const auto& [name, value] : identity) {
        const io::Json* before = saved->find(name);
        const std::string was =
            before != nullptr && before->is_string() ? before->as_string() : "not set";
        if (was != value) {
            refuse(ErrorKind::Config,
                   fmt::format("answers of another start are there, made with {} {}; now it is {}",
                               name,
                               was,
                               value),
                   folder,
                   fmt::format("Go on with the settings of that start, write to another --output, "
                               "or remove the folder: rm -r {}",
                               shell_word(ResponseJournal::folder_of(output))));
        }
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

ResponseJournal::ResponseJournal(const std::string& output,
                                 const ResponseIdentity& identity,
                                 std::int64_t num_tasks)
    : output_(output),
      folder_(folder_of(output)),
      offsets_(static_cast<std::size_t>(num_tasks), -1) {
    if (fs::exists(output)) {
        refuse(ErrorKind::Config,
               "the output is there already",
               output,
               "Name another --output, or remove the file");
    }
    io::create_folders(folder_);
    lock_.emplace(folder_);
    const std::string path = journal_path(folder_);
    if (fs::exists(path) && fs::file_size(path) > 0) {
        read(identity);
    }
    file_.emplace(path, io::OutputFile::Mode::Append);
    if (fs::file_size(path) > static_cast<std::uintmax_t>(size_)) {
        file_->truncate(size_);
    }
    if (size_ == 0) {
        const std::string header = header_line(identity);
        file_->write(header);
        file_->sync();
        size_ = static_cast<std::int64_t>(header.size());
    }
    resumed_ = num_done_;
}

void ResponseJournal::read(const ResponseIdentity& identity) {
    const std::string path = journal_path(folder_);
    const io::MappedFile file(path);
    const std::string_view text = file.text();
    std::int64_t number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = text.find('\n', begin);
        if (end == std::string_view::npos) {
            break;  // cut by the end of the machine or a full disk
        }
        ++number;
        const std::string where = fmt::format("{}:{}", path, number);
        const io::Json line = io::Json::parse(text.substr(begin, end - begin), where);
        if (number == 1) {
            compare(line, identity, folder_, output_);
        } else {
            ResponseEntry entry;
            entry.task = integer_of(line, "task");
            if (entry.task < 0 || entry.task >= static_cast<std::int64_t>(offsets_.size()) ||
                done(entry.task)) {
                refuse(ErrorKind::Data,
                       fmt::format("got answer {}, expected one below {} that is not there yet",
                                   entry.task,
                                   offsets_.size()),
                       where,
                       "The journal is damaged; remove its folder to begin anew");
            }
            const io::Json* dropped = line.find("dropped");
            entry.dropped = dropped != nullptr && dropped->is_string() ? dropped->as_string() : "";
            entry.row = dropped == nullptr ? "there" : "";
            entry.tokens = std::max<std::int64_t>(0, integer_of(line, "tokens"));
            entry.cut = flag_of(line, "cut");
            entry.inexact = flag_of(line, "inexact");
            count(entry, static_cast<std::int64_t>(begin));
        }
        begin = end + 1;
        size_ = static_cast<std::int64_t>(begin);
    }
}

void ResponseJournal::count(const ResponseEntry& entry, std::int64_t offset) {
    offsets_[static_cast<std::size_t>(entry.task)] = offset;
    ++num_done_;
    sums_.tokens += entry.tokens;
    sums_.cut += entry.cut ? 1 : 0;
    if (entry.row.empty()) {
        ++sums_.dropped[entry.dropped];
    } else {
        ++sums_.answered;
        sums_.inexact += entry.inexact ? 1 : 0;
    }
}

void ResponseJournal::add(const ResponseEntry& entry) {
    DFLASH_CHECK(!done(entry.task), "answer {} came twice", entry.task);
    const std::string line = line_of(entry);
    try {
        file_->write(line);
    } catch (...) {
        file_->truncate(size_);  // a full disk may have taken a part of the line
        throw;
    }
    count(entry, size_);
    size_ += static_cast<std::int64_t>(line.size());
    const auto now = std::chrono::steady_clock::now();
    if (now - synced_ > kSyncEvery) {
        file_->sync();
        synced_ = now;
    }
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
