// SPDX-License-Identifier: Apache-2.0
#include "app/command_line.hpp"

// The program is in app/run.cpp.
int main(int argc, char** argv) {
  return cadenza::app::run(argc, argv);
}
