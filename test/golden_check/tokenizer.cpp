// SPDX-License-Identifier: Apache-2.0
// Token cases: {"tag", "text", "ids", "decoded"} a line; text null means decode only. Ids and
// decoded text have to be exactly those of the reference.
#include "golden_check.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/text.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/io/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>

namespace dflash::golden {
namespace {

constexpr std::size_t kShownPerTag = 3;

struct Tally {
    std::int64_t ids_total = 0;
    std::int64_t ids_wrong = 0;
    std::int64_t decoded_total = 0;
    std::int64_t decoded_wrong = 0;
    std::vector<std::string> shown;  // the first failures
};

std::string ids_text(const std::vector<TokenId>& ids) {
    constexpr std::size_t kMost = 24;
    const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(ids.size(), kMost));
    return fmt::format("{} ids [{}{}]",
                       ids.size(),
                       fmt::join(ids.begin(), end, " "),
                       ids.size() > kMost ? " .." : "");
}

void show(Tally& tally, const std::string& text) {
    if (tally.shown.size() < kShownPerTag) {
        tally.shown.push_back(text);
    }
}

void check_case(const data::Tokenizer& tokenizer,
                const io::Json& json,
                const std::string& where,
                Tally& tally) {
    const io::Json* text = json.find("text");
    const io::Json* expected_ids = json.find("ids");
    if (text == nullptr || expected_ids == nullptr || !expected_ids->is_array()) {
        throw Error(
            ErrorKind::Data,
            {.what = "a case without text or ids", .where = where, .cause = "", .hint = ""});
    }
    std::vector<TokenId> ids;
    for (const io::Json& item : expected_ids->items()) {
        ids.push_back(static_cast<TokenId>(item.to_integer().value_or(-1)));
    }
    if (text->is_string()) {
        ++tally.ids_total;
        const data::Encoding encoding = tokenizer.encode(text->as_string());
        if (encoding.ids != ids) {
            ++tally.ids_wrong;
            show(tally,
                 fmt::format("{}: {} gives {}, expected {}",
                             where,
                             quote(text->as_string(), 160),
                             ids_text(encoding.ids),
                             ids_text(ids)));
        }
    }
    const std::string expected = json.require_string("decoded", where);
    const std::string decoded = tokenizer.decode(ids);
    ++tally.decoded_total;
    if (decoded != expected) {
        ++tally.decoded_wrong;
        show(tally,
             fmt::format("{}: {} decode to {}, expected {}",
                         where,
                         ids_text(ids),
                         quote(decoded, 160),
                         quote(expected, 160)));
    }
}

}  // namespace

void check_tokenizer(const std::string& tokenizer_json,
                     const std::string& cases,
                     Verdict& verdict) {
    const data::Tokenizer tokenizer = data::Tokenizer::from_file(tokenizer_json);
    std::ifstream file(cases, std::ios::binary);
    if (!file) {
        throw Error(ErrorKind::Config,
                    {.what = "cases cannot be opened", .where = cases, .cause = "", .hint = ""});
    }
    std::map<std::string, Tally> tallies;
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        const std::string where = fmt::format("{}:{}", cases, number);
        const io::Json json = io::Json::parse(line, where);
        check_case(tokenizer, json, where, tallies[json.require_string("tag", where)]);
    }
    Tally sum;
    for (const auto& [tag, tally] : tallies) {
        for (const std::string& text : tally.shown) {
            verdict.note(fmt::format("{} {}", tag, text));
        }
        if (tally.ids_wrong + tally.decoded_wrong > 0) {
            verdict.note(fmt::format("{}: ids {} of {} wrong, decoded {} of {} wrong",
                                     tag,
                                     tally.ids_wrong,
                                     tally.ids_total,
                                     tally.decoded_wrong,
                                     tally.decoded_total));
        }
        sum.ids_total += tally.ids_total;
        sum.ids_wrong += tally.ids_wrong;
        sum.decoded_total += tally.decoded_total;
        sum.decoded_wrong += tally.decoded_wrong;
    }
    verdict.exact("ids", sum.ids_wrong, sum.ids_total, "");
    verdict.exact("decoded", sum.decoded_wrong, sum.decoded_total, "");
}

}  // namespace dflash::golden
