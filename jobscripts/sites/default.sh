# shellcheck shell=bash disable=SC2034  # read by common.sh
# SPDX-License-Identifier: Apache-2.0
# A site where Open MPI, HDF5 and the rest are on the path, and Slurm has its pmix plugin.
launcher=srun          # or mpirun, where 'srun --mpi=list' does not name pmix
build=build/release    # folder of the program: its CMake preset
