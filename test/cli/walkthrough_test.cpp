// SPDX-License-Identifier: Apache-2.0
// The excerpts of docs/walkthrough.md against the files they are cut from.
#include <doctest/doctest.h>
#include <fstream>
#include <sstream>
#include <string>

namespace dflash::cli {

TEST_SUITE("cli.walkthrough") {
    TEST_CASE("every excerpt stands in its file, word for word") {
        std::ifstream docs("docs/walkthrough.md");
        REQUIRE(docs.good());
        int excerpts = 0;
        std::string file;
        std::string excerpt;
        for (std::string line; std::getline(docs, line);) {
            if (line.starts_with("```cpp ")) {
                file = line.substr(7);
                excerpt.clear();
            } else if (line == "```" && !file.empty()) {
                std::ifstream source(file);
                REQUIRE_MESSAGE(source.good(), file);
                std::ostringstream text;
                text << source.rdbuf();
                CAPTURE(file);
                CAPTURE(excerpt);
                CHECK(text.str().find(excerpt) != std::string::npos);
                ++excerpts;
                file.clear();
            } else if (!file.empty()) {
                excerpt += line + "\n";
            }
        }
        CHECK(excerpts >= 4);
    }

    TEST_CASE("every file the walkthrough names is there") {
        std::ifstream docs("docs/walkthrough.md");
        int files = 0;
        for (std::string line; std::getline(docs, line);) {
            for (std::size_t begin = line.find("`src/"); begin != std::string::npos;
                 begin = line.find("`src/", begin + 1)) {
                const std::string path =
                    line.substr(begin + 1, line.find('`', begin + 1) - begin - 1);
                CAPTURE(path);
                CHECK(std::ifstream(path).good());
                ++files;
            }
        }
        CHECK(files >= 5);
    }
}

}  // namespace dflash::cli
