// SPDX-License-Identifier: Apache-2.0
#include <dflash/cli/run.hpp>

int main(int argc, char** argv) {
    return dflash::cli::run(argc, argv);
}
