# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the restart scripts, before anything else: a run that is longer than the time limit, as a
# chain of attempts. Slurm signals the job before its end, the program ends its step, writes a checkpoint
# and exits with 85, the job is queued again and goes on from its newest sound checkpoint, in a folder of
# its own: attempt-0, attempt-1, ... A node that fails is survived in the same way.

# The signal comes to this shell alone, at any time, also while modules load: it is noted, and chain()
# passes it on.
asked=   # yes: it came; passed: the launcher has it
trap 'echo "== near the time limit"; asked=${asked:-yes}' USR1
source jobscripts/common.sh

# await_launcher PROCESS RUN: passes the signal on, returns the launcher's exit code. It polls: `wait`
# would end for a signal as well, with the code of a launcher that the signal has killed.
await_launcher() {
  while kill -0 "$1" 2>/dev/null; do
    # A launcher that just starts dies of the signal. When metrics.jsonl is there, every rank takes it.
    # One is enough: a second ends the ranks at once.
    if [ "$asked" = yes ] && [ -e "$2/metrics.jsonl" ]; then
      asked=passed
      kill -USR1 "$1" || true
    fi
    sleep 1 || true
  done
  wait "$1"
}

# chain EXPERIMENT [OPTION...]: one attempt, and what follows from how it ended.
chain() {
  local attempt=0 run options=() code=0
  check "$@"
  mentions 'every *[:=] *[1-9]' "$@" ||
    fail "$1 writes no checkpoints, which restarts begin from: set run.checkpoint.every"

  while [ -e "$folder/attempt-$attempt" ]; do attempt=$((attempt + 1)); done
  run=$folder/attempt-$attempt
  options=("${@:2}")
  if compgen -G "$folder/attempt-*/checkpoints/step-*.h5" >/dev/null; then
    options+=(--from "$folder")   # the program passes over what is damaged
  fi

  write_facts "$run/job"
  echo "== attempt $attempt"
  "${launch[@]}" "$program" train "$1" "${options[@]}" --output "$run" &
  await_launcher $! "$run" || code=$?

  if [ "$code" = 85 ]; then
    if [ ! -s "$run/metrics.jsonl" ] || ! compgen -G "$run/checkpoints/step-*.h5" >/dev/null; then
      fail "this attempt wrote no newer checkpoint: ask for a longer --time or a smaller run.checkpoint.every"
    fi
    echo "== queued again, to go on from $folder"
    scontrol requeue "$SLURM_JOB_ID" ||
      fail "this cluster does not requeue: submit the same again, with CADENZA_RUN=$folder"
    exit 0
  fi
  [ "$code" = 0 ] || exit "$code"
  report "$run"
}
