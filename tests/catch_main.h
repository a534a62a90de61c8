// For test programs with a main() of their own; the others need nothing but their TEST_CASEs.
//
// Test code only. No thread rule.
#pragma once

// Runs all registered test cases as the command line asks; the exit status.
[[nodiscard]] int run_tests(int argc, char** argv);
