// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace cadenza {

/// Returns the rank that the launcher (mpirun, srun) gave this process, before MPI is up; 0 without
/// a launcher. Decides only who prints, and how.
int launcher_rank();
bool has_launcher();

}  // namespace cadenza
