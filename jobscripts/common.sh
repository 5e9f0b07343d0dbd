# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the job scripts beside it, which start in the repository's root: the site's settings, the
# checks before a run, the facts kept beside it, the launcher and the report.
fail() { echo "error: $*" >&2; exit 2; }

[ -n "${SLURM_JOB_ID:-}" ] || fail "there is no Slurm job here: start job scripts with sbatch"

# What a site's file may set. CADENZA names another program, e.g. one that is installed.
launcher=srun
build=build/release
case ${CADENZA_SITE:-default} in
  */*) site=$CADENZA_SITE ;;
  *) site=jobscripts/sites/${CADENZA_SITE:-default}.sh ;;
esac
[ -r "$site" ] || fail "$site: no such site; valid for CADENZA_SITE: a file, or one of" \
  "$(basename -s .sh jobscripts/sites/*.sh | xargs)"
set +eu   # modules are not written for them; what then lacks, the checks name
# shellcheck source=jobscripts/sites/default.sh
source "$site"
set -eu
program=${CADENZA:-$PWD/$build/cadenza}

# Where the job's results go. CADENZA_RUN continues a chain that a job of another number began.
# shellcheck disable=SC2034  # read by the job scripts
folder=${CADENZA_RUN:-runs/$SLURM_JOB_NAME-${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}

# refuse_foreign FOLDER: job numbers recur, on another cluster or after a reset; what this job finds
# before its first start belongs to another job of its number, unless CADENZA_RUN says otherwise.
refuse_foreign() {
  [ -z "${CADENZA_RUN:-}" ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ] && [ -e "$1" ] || return 0
  fail "$1 is there already, but job $SLURM_JOB_ID was never started before: it is another job's; move" \
    "it away, or say CADENZA_RUN=$1"
}

[ -n "${SLURM_ARRAY_JOB_ID:-}" ] || refuse_foreign "$folder"   # tasks of an array share it

# mentions PATTERN EXPERIMENT [OPTION...]: whether the experiment or its options say so.
mentions() { grep -qE "\\b$1" <(sed 's/#.*//' "$2"; echo "${@:3}"); }

# Since Slurm 22.05 srun does not take it over from the job.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# The tasks of the job, one number for each component of a heterogeneous one.
tasks=("${SLURM_NTASKS:-1}")
components=()
if [ -n "${SLURM_HET_SIZE:-}" ]; then
  tasks=()
  for ((i = 0; i < SLURM_HET_SIZE; i++)); do
    count=SLURM_NTASKS_HET_GROUP_$i
    tasks+=("${!count}")
  done
  components=("--het-group=0-$((SLURM_HET_SIZE - 1))")   # one MPI world over all of them
fi

# What starts the ranks. A rank that dies alone (out of memory) takes the others with it after a minute;
# --kill-on-bad-exit would do so at once, also to ranks that still close their files after a signal.
case $launcher in
  srun) launch=(srun --mpi=pmix --cpu-bind=cores --wait=60 "${components[@]}") ;;
  mpirun) launch=(mpirun --bind-to none) ;;   # the ranks pin their threads themselves
  *) fail "$site: launcher=$launcher; valid: srun, mpirun" ;;
esac

check_launcher() {
  local found
  if [ "$launcher" = srun ]; then
    found=$(srun --mpi=list 2>&1) || true
    grep -qw pmix <<<"$found" ||
      fail "srun has no pmix (${found//$'\n'/ }): set launcher=mpirun in $site"
  else
    command -v mpirun >/dev/null || fail "there is no mpirun: load Open MPI's module in $site"
    [ ${#components[@]} -eq 0 ] ||
      fail "mpirun does not span the components of a heterogeneous job: set launcher=srun in $site"
  fi
}

# check EXPERIMENT [OPTION...]: before anything is computed, that the program is there, that it accepts
# the experiment, and that the job has the ranks that the experiment asks for.
check() {
  local layout ranks trainers servers
  [ -x "$program" ] || fail "$program: there is no program; build it: cmake --preset ${build##*/} &&" \
    "cmake --build --preset ${build##*/}"
  check_launcher
  layout=$("$program" train "$@" --dry-run) || exit
  read -r ranks trainers servers < <(sed -nE \
    's/^.*: ([0-9]+) ranks? = ([0-9]+) trainers? .* \+ (no|[0-9]+) dedicated .*$/\1 \2 \3/p' <<<"$layout") ||
    fail "$program train --dry-run does not say how many ranks $1 needs"
  if [ ${#components[@]} -gt 0 ]; then
    [ "${tasks[*]}" = "$trainers $servers" ] || fail "$1 asks for $trainers trainers and $servers" \
      "dedicated servers, but the job's components have ${tasks[*]} tasks: change --ntasks-per-node of" \
      "the script's components, or parallel and attention.servers of the experiment"
  elif [ "${tasks[*]}" != "$ranks" ]; then
    fail "$1 asks for $ranks ranks, but the job has ${tasks[*]} tasks: sbatch --nodes and" \
      "--ntasks-per-node say how many, or parallel and attention.servers of the experiment"
  fi
  # Experiments that are copied from others say nothing of devices, or `host`.
  if [ -n "${SLURM_JOB_GPUS:-}${SLURM_GPUS_ON_NODE:-}" ] && ! mentions 'device *[:=] *"?cuda' "$@" &&
    [[ ${*:2} != *run.device=host* ]]; then
    fail "the job has GPUs, but $1 computes on processors: run.device: cuda, or as an option" \
      "--set run.device=host if the GPUs are to stay idle"
  fi
}

# write_facts FOLDER: what ran where, for the day on which somebody asks. Never fails the job.
write_facts() {
  local facts=$1
  mkdir -p "$facts" || fail "$facts: cannot be made; runs/ should lie on a shared, writable file system"
  scontrol show job "$SLURM_JOB_ID" >"$facts/job.txt" 2>&1 || true
  env | grep -E '^(CADENZA|CUDA|NCCL|OMP|OMPI|PMIX|SBATCH|SLURM|SRUN|UCX|HDF5|LOADEDMODULES)' | sort \
    >"$facts/environment.txt" || true
  {
    "$program" --version
    git describe --always --dirty 2>&1
    ldd "$program"
  } >"$facts/program.txt" 2>&1 || true
  # shellcheck disable=SC2016  # expanded on the nodes
  timeout 60 srun --mpi=none "${components[@]}" bash -c '
    [ "$SLURM_LOCALID" = 0 ] || exit 0
    echo "node $SLURMD_NODENAME: $(uname -sr), $(getconf _NPROCESSORS_ONLN) processors, $(lscpu | sed -n "s/^Model name: *//p")"
    nvidia-smi -L 2>/dev/null || true' >"$facts/nodes.txt" 2>&1 || true
}

# train RUN EXPERIMENT [OPTION...]: a training run on all ranks of the job, into the folder RUN. The
# program renames the run that an earlier start of the job has left there: facts join it at its end.
train() {
  local run=$1 code=0
  shift
  [ ! -d "$run.job" ] || [ ! -d "$run" ] || mv "$run.job" "$run/job"
  write_facts "$run.job"
  echo "== ${launch[*]} $program train $* --output $run"
  "${launch[@]}" "$program" train "$@" --output "$run" || code=$?
  [ ! -d "$run" ] || [ -d "$run/job" ] || mv "$run.job" "$run/job"
  return $code
}

# report RUN... [--output FILE]: one page about them. What it says of failures is in the log; the job succeeds.
report() {
  command -v cadenza-analyze >/dev/null || PATH=$PATH:$PWD/.venv/bin
  if ! command -v cadenza-analyze >/dev/null; then
    echo "== no report: cadenza-analyze is not installed (python3 -m pip install ./analysis)"
  elif ! cadenza-analyze report "$@"; then
    echo "== no report: cadenza-analyze failed, see above; the traces are complete: $*"
  fi
}
