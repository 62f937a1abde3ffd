// SPDX-License-Identifier: Apache-2.0
#include "captured_run.hpp"

#include <dflash/cli/run.hpp>
#include <dflash/core/scope.hpp>

#include <cstdio>
#include <doctest/doctest.h>
#include <memory>
#include <unistd.h>

namespace dflash::cli {

Outcome captured_run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "dflash");
    std::vector<char*> pointers;
    for (std::string& argument : arguments) {
        pointers.push_back(argument.data());
    }
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
    REQUIRE(file != nullptr);
    Outcome outcome;
    {
        std::fflush(stdout);
        const int saved = ::dup(STDOUT_FILENO);
        const int saved_errors = ::dup(STDERR_FILENO);
        ::dup2(fileno(file.get()), STDOUT_FILENO);
        ::dup2(fileno(file.get()), STDERR_FILENO);
        const ScopeGuard restore([saved, saved_errors] {
            std::fflush(stdout);
            ::dup2(saved, STDOUT_FILENO);
            ::dup2(saved_errors, STDERR_FILENO);
            ::close(saved);
            ::close(saved_errors);
        });
        outcome.code = run(static_cast<int>(pointers.size()), pointers.data());
    }
    std::rewind(file.get());
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) {
        outcome.output.append(buffer, n);
    }
    return outcome;
}

}  // namespace dflash::cli
