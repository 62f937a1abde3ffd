// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/activity.hpp>
#include <dflash/core/check.hpp>
#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/sha256.hpp>
#include <dflash/core/text.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/train/response_cache.hpp>

#include <filesystem>
#include <fmt/format.h>
#include <thread>
#include <utility>

namespace dflash::train {
namespace {

namespace fs = std::filesystem;

// The name of a folder: the same identity gives the same one.
std::string key_of(const ResponseIdentity& identity) {
    return sha256_hex(response_header(identity)).substr(0, 16);
}

std::string line_of(const std::string& key, const ResponseEntry& entry) {
    io::Json line = io::Json::object({{"key", io::Json::string(key)},
                                      {"tokens", io::Json::integer(entry.tokens)},
                                      {"repeated", io::Json::number(entry.repeated)}});
    if (entry.cut) {
        line.set("cut", io::Json::boolean(true));
    }
    if (entry.inexact) {
        line.set("inexact", io::Json::boolean(true));
    }
    line.set("answers", io::Json::array(entry.answers));
    return line.dump() + "\n";
}

bool flag_of(const io::Json& line, std::string_view name) {
    const io::Json* value = line.find(name);
    return value != nullptr && value->is_bool() && value->as_bool();
}

// Throws Error{Data} for a line that is not whole.
CachedResponse response_of(const io::Json& line, const std::string& where) {
    CachedResponse response;
    response.tokens = line.require_integer("tokens", where);
    response.repeated = line.require_number("repeated", where);
    response.cut = flag_of(line, "cut");
    response.inexact = flag_of(line, "inexact");
    const io::Json* answers = line.find("answers");
    if (answers == nullptr || !answers->is_array() || answers->items().empty()) {
        throw Error(ErrorKind::Data,
                    {.what = "answers: expected a list that is not empty",
                     .where = where,
                     .cause = {},
                     .hint = {}});
    }
    response.answers = answers->items();
    return response;
}

}  // namespace

ResponseCache::ResponseCache(const std::string& root, ResponseIdentity identity)
    : identity_(std::move(identity)),
      folder_(root.empty() ? "" : (fs::path(root) / "responses" / key_of(identity_)).string()) {
    read_new();
}

std::string ResponseCache::path() const {
    return (fs::path(folder_) / "answers.jsonl").string();
}

void ResponseCache::read_new() {
    if (folder_.empty()) {
        return;
    }
    const std::int64_t before = read_bytes_;
    std::int64_t num_damaged = 0;
    std::string first_damaged;
    const auto skip = [&](const Error& error, const std::string& where) {
        if (num_damaged++ == 0) {
            first_damaged = fmt::format("{}: {}", where, error.parts().what);
        }
    };
    read_bytes_ = JournalFile::read(
        path(),
        [&](const JournalLine& line) {
            if (line.offset == 0) {
                if (!response_differences(line.json, identity_, line.where).empty()) {
                    throw Error(ErrorKind::Data,
                                {.what = "the answers in the cache were made with other settings "
                                         "than the name of their folder says",
                                 .where = line.where,
                                 .cause = {},
                                 .hint = "Remove the folder"});
                }
                return;
            }
            try {
                const CachedResponse response = response_of(line.json, line.where);
                const bool is_new = entries_
                                        .emplace(line.json.require_string("key", line.where),
                                                 Place{line.offset, std::ssize(line.text)})
                                        .second;
                tokens_ += is_new ? response.tokens : 0;
            } catch (const Error& error) {
                skip(error, line.where);
            }
        },
        read_bytes_,
        skip);
    if (num_damaged > 0) {
        log_warning(
            "{} line{} of the cache of answers {} damaged: their rows are answered anew. "
            "The first: {}",
            format_count(num_damaged),
            num_damaged == 1 ? "" : "s",
            num_damaged == 1 ? "is" : "are",
            first_damaged);
    }
    if (read_bytes_ > before) {
        file_.emplace(path());
    }
}

std::optional<CachedResponse> ResponseCache::find(const std::string& key) const {
    const auto place = entries_.find(key);
    if (place == entries_.end()) {
        return std::nullopt;
    }
    const std::string where = fmt::format("{}, answer {}", path(), key);
    const io::Json line =
        io::Json::parse(file_->text().substr(static_cast<std::size_t>(place->second.offset),
                                             static_cast<std::size_t>(place->second.bytes)),
                        where);
    return response_of(line, where);
}

std::optional<double> ResponseCache::mean_tokens() const {
    return entries_.empty()
               ? std::nullopt
               : std::optional(static_cast<double>(tokens_) / static_cast<double>(size()));
}

bool ResponseCache::begin_adding(const std::function<bool()>& stop) {
    if (folder_.empty()) {
        return true;
    }
    try {
        io::create_folders(folder_);
        bool told = false;
        while (io::FolderLock::is_held(folder_)) {
            if (!std::exchange(told, true)) {
                log_info("answers   another run is adding to {}; this one waits for it", folder_);
            }
            if (stop()) {
                return false;
            }
            note_progress();  // it is the other's time that passes
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
        }
        lock_.emplace(folder_);
        read_new();
        adding_.emplace(path(), read_bytes_, response_header(identity_));
        if (read_bytes_ == 0) {
            read_bytes_ = adding_->size();
        }
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::Storage) {
            throw;
        }
        ErrorParts parts = error.parts();
        parts.hint =
            "Answers are kept there for this run and later ones: name a folder that can "
            "be written with --set cache.dir=DIR";
        throw Error(ErrorKind::Storage, std::move(parts));
    }
    return true;
}

void ResponseCache::add(const std::string& key, const ResponseEntry& entry) {
    if (folder_.empty()) {
        return;
    }
    DFLASH_CHECK(adding_.has_value(), "the cache of answers is not open");
    adding_->append(line_of(key, entry));
}

void ResponseCache::end_adding() {
    if (adding_) {
        adding_->sync();
        adding_->close();
        adding_.reset();
    }
    lock_.reset();
    read_new();
}

}  // namespace dflash::train
