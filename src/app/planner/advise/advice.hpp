// SPDX-License-Identifier: Apache-2.0
// The answer of `cadenza advise`, and its three forms: text for a terminal, JSON, an HTML page.
#pragma once

#include <string>
#include <vector>

#include "app/planner/advise/documents.hpp"
#include "app/planner/advise/evidence.hpp"
#include "app/planner/advise/instructions.hpp"
#include "app/planner/advise/scenarios.hpp"
#include "app/planner/command_line.hpp"
#include "app/planner/search/search.hpp"
#include "cadenza/config/experiment.hpp"
#include "cadenza/config/machine.hpp"

namespace cadenza::app {

struct Advice {
  Question question;
  config::Experiment asked;  ///< with placement auto
  config::Machine machine;
  Documents documents;
  Choice choice;
  std::vector<Scenario> scenarios;
  std::vector<Evidence> evidence;  ///< of the same machine and software, or of what is nearest
  std::vector<Instruction> instructions;
  std::string folder;  ///< of the files; empty: none
};

// --- Sentences that several forms have ---

/// "llama2-13b on 64 h100, sequences of 128K tokens, 1.05M tokens a step, as megatron".
std::string question_text(const Advice& advice);
/// "The fastest: data 4 x ..., zigzag: 7.69 s a step, 136K tokens/s."
std::string answer_text(const Advice& advice);
/// What CAD gains on this mix; or that it is not known, and why.
std::string cad_text(const Advice& advice);
/// Where CAD pays and where it does not; empty where there is nothing to compare.
std::string pays_text(const std::vector<Scenario>& scenarios);
/// Lines: the documents but their bins.
std::vector<std::string> documents_text(const Documents& documents);
/// "0.97 x (0.95 to 0.99)".
std::string ratio_text(const StepRatio& ratio);
/// The time of a scenario's layout: "7.69 s", "no room", "not possible".
std::string outlook_text(const Outlook& outlook);
/// "row 3: data 2 x ..., zigzag; 1.04 x the time of the fastest".
std::string row_text(const Advice& advice, const Instruction& instruction);
/// What is typed: the recipe, but for Cadenza, whose recipe is an experiment, how that is run.
std::string to_type(const Advice& advice, const Instruction& instruction);
inline constexpr const char* kScenarioNote =
    "The same two layouts throughout; *: does not fit into memory; -: another layout is needed.";

// --- Forms ---

std::string to_text(const Advice& advice);
std::string to_json(const Advice& advice);
std::string to_page(const Advice& advice);

}  // namespace cadenza::app
