// Catch2's own code and main(), compiled once for all test programs.
//
// A program that must look at something before its tests (captures that may be absent) defines main() itself
// and ends in run_tests().
#define CATCH_CONFIG_RUNNER
#include "tests/catch_main.h"

#include <catch2/catch.hpp>

int run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }

__attribute__((weak)) int main(int argc, char** argv) { return run_tests(argc, argv); }
