// SPDX-License-Identifier: Apache-2.0
#include "app/planner/commands.hpp"

// The program without what training needs is in app/planner/run.cpp.
int main(int argc, char** argv) {
  return cadenza::app::run_planner(argc, argv);
}
