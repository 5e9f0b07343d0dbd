// SPDX-License-Identifier: Apache-2.0
#include "app/commands.hpp"

int main(int argc, char** argv) {
  return cadenza::app::run(argc, argv);
}
