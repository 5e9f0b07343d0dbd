# shellcheck shell=bash disable=SC2034  # read by common.sh
# SPDX-License-Identifier: Apache-2.0
# A cluster of eight-GPU nodes with modules and InfiniBand. Copy it, put your site's names in, and
# `source` the copy before sbatch: the job then finds it by CADENZA_SITE and sources it again.
export CADENZA_SITE=example
export SBATCH_ACCOUNT=my-project          # sbatch reads these: --account,
export SBATCH_PARTITION=gpu               # --partition

launcher=srun
build=build/cuda

# shellcheck source=/dev/null
[ "$(type -t module)" = function ] || source /etc/profile.d/modules.sh
module purge
module load gcc/13 openmpi/4.1-cuda hdf5/1.14 python/3.11

# Transport. Interface and adapter names are the site's: `ip link`, `ibv_devinfo -l` on a node.
export OMPI_MCA_pml=ucx UCX_TLS=rc,cuda_copy,cuda_ipc,sm,self UCX_NET_DEVICES=mlx5_0:1
export NCCL_DEBUG=WARN NCCL_SOCKET_IFNAME=ib0 NCCL_IB_HCA=mlx5   # with run.device: cuda
export HDF5_USE_FILE_LOCKING=FALSE        # parallel file systems mounted without locks
