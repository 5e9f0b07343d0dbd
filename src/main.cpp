// SPDX-License-Identifier: Apache-2.0
#include "app/commands.hpp"

// The program is in app/run.cpp.
int main(int argc, char** argv) {
  return cadenza::app::run(argc, argv);
}
