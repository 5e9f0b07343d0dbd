#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The layer check finds each kind of violation when it is planted, and nothing in a clean tree."""

import tempfile
import unittest
from pathlib import Path

import check_layers

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
MODULES = """# SPDX-License-Identifier: Apache-2.0
cadenza_module(base LIBRARIES fmt::fmt)
cadenza_module(plan DEPENDS base)  # cadenza_module(gone)
cadenza_module(comm DEPENDS base
  LIBRARIES MPI::MPI_CXX)
cadenza_module(kernels DEPENDS base)
cadenza_module(app DEPENDS base plan comm kernels)
"""


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.write("CMakeLists.txt", MODULES)
        self.write("include/cadenza/base/error.hpp", LICENCE)
        self.write("include/cadenza/plan/plan.hpp", LICENCE + '#include "cadenza/base/error.hpp"\n')
        self.write("src/plan/detail.hpp", LICENCE)
        self.write("src/plan/plan.cpp", LICENCE + '#include "plan/detail.hpp"\n#include <vector>\n')
        self.write("src/comm/mpi.cpp", LICENCE + "#include <mpi.h>\n")
        self.write("kernels/cpu/matmul.cpp", LICENCE + "#include <oneapi/dnnl/dnnl.hpp>\n")
        self.write("src/main.cpp", LICENCE + '#include "cadenza/plan/plan.hpp"\n')
        self.write("tests/unit/plan/test_plan.cpp", LICENCE + "#include <hdf5.h>\n")

    def write(self, name, text):
        path = Path(self.folder.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def found(self):
        return check_layers.violations(self.folder.name)

    def expect_one(self, *parts):
        found = self.found()
        self.assertEqual(len(found), 1, found)
        for part in parts:
            self.assertIn(part, found[0])

    def test_clean_tree(self):
        self.assertEqual(self.found(), [])

    def test_a_kernel_past_the_stream(self):
        self.write("src/plan/good.cpp", LICENCE + 'launch("sum", policy, f);\n'
                   "Kokkos::parallel_for(Kokkos::TeamThreadRange(team, 3), f);\n"
                   'Kokkos::parallel_for(\n    "fill", Kokkos::RangePolicy<Kokkos::'
                   "DefaultHostExecutionSpace>(0, 3), f);\n")
        self.write("src/plan/bad.cpp", LICENCE + 'Kokkos::parallel_for("sum", policy, f);\n')
        self.expect_one("src/plan/bad.cpp:2", "past the stream")
        self.write("src/plan/bad.cpp", LICENCE + 'Kokkos::parallel_for("sum", Kokkos::TeamPolicy<'
                   "Device>(3, 1), f);\n")
        self.expect_one("src/plan/bad.cpp:2", "past the stream")
        self.write("src/plan/bad.cpp", LICENCE + "Kokkos::fence();\n")
        self.expect_one("src/plan/bad.cpp:2", "past the stream")

    def test_include_of_a_module_not_in_depends(self):
        self.write("src/plan/bad.cpp", LICENCE + '#include "cadenza/comm/world.hpp"\n')
        self.expect_one("src/plan/bad.cpp:2", "module plan includes", "DEPENDS are: base")

    def test_private_header_of_another_module(self):
        self.write("src/app/bad.cpp", LICENCE + '#include "plan/detail.hpp"\n')
        self.expect_one("src/app/bad.cpp:2", "plan/detail.hpp, a private header of plan")

    def test_public_header_that_nobody_may_include(self):
        self.write("include/cadenza/app/commands.hpp", LICENCE)
        self.expect_one("include/cadenza/app", "belong in src/")

    def test_a_part_of_a_module(self):
        self.write("CMakeLists.txt", MODULES.replace("base plan comm kernels)",
                                                     "base plan comm kernels app/planner)")
                   + "cadenza_module(app/planner DEPENDS base)\n")
        self.write("src/app/planner/run.hpp", LICENCE + "#include <CLI/CLI.hpp>\n")
        self.write("src/app/good.cpp", LICENCE + '#include "app/planner/run.hpp"\n')
        self.assertEqual(self.found(), [])
        for bad, why in (('"cadenza/plan/plan.hpp"', "DEPENDS are: base"),
                         ('"app/heavy.hpp"', "a private header of app")):
            self.write("src/app/heavy.hpp", LICENCE)
            self.write("src/app/planner/bad.cpp", LICENCE + f"#include {bad}\n")
            self.expect_one("src/app/planner/bad.cpp:2", why)

    def test_a_part_has_none_of_the_libraries_of_its_module(self):
        self.write("CMakeLists.txt", MODULES + "cadenza_module(comm/plain DEPENDS base)\n")
        self.write("src/comm/plain/bad.cpp", LICENCE + "#include <mpi.h>\n")
        self.expect_one("src/comm/plain/bad.cpp:2", "mpi.h", "only for")

    def test_default_of_a_switch(self):
        numbers = "switch (below(3)) {\n  case 1:\n    break;\n  default:\n    break;\n}\n"
        self.write("src/plan/good.cpp", LICENCE + "/// (default: none)\n" + numbers)
        self.write("src/plan/bad.cpp", LICENCE + "case Kind::a:\n  default:\n    break;\n}\n")
        self.expect_one("src/plan/bad.cpp:3", "-Wswitch")

    def test_name_of_a_test_file(self):
        self.write("tests/unit/plan/plan_test.cpp", LICENCE)
        self.expect_one("tests/unit/plan/plan_test.cpp:1", "called test_*.cpp")

    def test_include_upwards_in_a_public_header(self):
        self.write("include/cadenza/base/bad.hpp", LICENCE + '#include "cadenza/plan/plan.hpp"\n')
        self.expect_one("include/cadenza/base/bad.hpp:2", "module base includes")

    def test_private_header_of_another_module_by_a_relative_path(self):
        self.write("src/comm/bad.cpp", LICENCE + '#include "../plan/detail.hpp"\n')
        self.expect_one("src/comm/bad.cpp:2", "of plan")

    def test_main_counts_as_app_and_nobody_includes_app(self):
        self.write("src/comm/bad.cpp", LICENCE + '#include "cadenza/app/run.hpp"\n')
        self.expect_one("of app")

    def test_undeclared_module(self):
        self.write("src/gone/bad.cpp", LICENCE)
        self.expect_one("src/gone/bad.cpp", "no cadenza_module line")

    def test_unknown_dependency(self):
        self.write("CMakeLists.txt", MODULES.replace("plan DEPENDS base)", "plan DEPENDS base x)"))
        self.expect_one("unknown module x")

    def test_cycle(self):
        self.write("CMakeLists.txt", MODULES.replace("base LIB", "base DEPENDS plan LIB"))
        self.expect_one("cycle: base -> plan -> base")

    def test_walls(self):
        for header in ("mpi.h", "yaml-cpp/yaml.h", "hdf5.h", "cuda_runtime.h", "nccl.h",
                       "cublas_v2.h", "Kokkos_Core.hpp", "oneapi/dnnl/dnnl.hpp", "CLI/CLI.hpp"):
            with self.subTest(header=header):
                self.write("src/plan/bad.cpp", LICENCE + f"#include <{header}>\n")
                self.expect_one("src/plan/bad.cpp:2", header, "only for")

    def test_mpi_in_a_unit_test(self):
        self.write("tests/unit/plan/bad.cpp", LICENCE + "#include <mpi.h>\n")
        self.expect_one("tests/unit/plan/bad.cpp:2", "MPI")

    def test_long_file(self):
        self.write("src/plan/bad.cpp", LICENCE + "\n" * 600)
        self.expect_one("src/plan/bad.cpp:601", "601 lines")

    def test_long_line(self):
        self.write("src/plan/bad.cpp", LICENCE + "/" * 101 + "\n")
        self.expect_one("src/plan/bad.cpp:2", "101 columns")

    def test_a_private_header_is_included_by_its_path_below_src(self):
        self.write("src/plan/near.cpp", LICENCE + '#include "detail.hpp"\n')
        self.expect_one("src/plan/near.cpp:2", "detail.hpp is included by its name")

    def test_wide_characters_count_once(self):
        self.write("src/plan/good.cpp", LICENCE + "// " + "Σ" * 97 + "\n")
        self.assertEqual(self.found(), [])

    def test_missing_licence_line(self):
        for name in ("src/plan/bad.cpp", "analysis/bad.py", "cmake/bad.cmake"):
            with self.subTest(name=name):
                self.write(name, "\n")
                self.expect_one(name, "SPDX")
                (Path(self.folder.name) / name).unlink()

    def test_missing_licence_line_in_a_script_without_suffix(self):
        self.write("scripts/bad", "#!/usr/bin/env bash\n")
        self.expect_one("scripts/bad", "SPDX")

    def test_machine_folder(self):
        self.write("inputs/bad.yaml", "path: /" + "home/someone/data\n")
        self.expect_one("inputs/bad.yaml:1", "one machine")

    def test_unfinished_work(self):
        self.write("docs/bad.md", "text\nTO" + "DO: more\n")
        self.expect_one("docs/bad.md:2", "unfinished")

    def test_exit_status(self):
        self.assertEqual(check_layers.main(["", self.folder.name]), 0)
        self.write("src/plan/bad.cpp", "\n")
        self.assertEqual(check_layers.main(["", self.folder.name]), 1)


if __name__ == "__main__":
    unittest.main()
