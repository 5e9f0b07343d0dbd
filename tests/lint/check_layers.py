#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the shape of the source tree; plain Python, run as `check_layers.py [ROOT]`.

- A module includes only itself and the modules its cadenza_module(... DEPENDS ...) line in
  CMakeLists.txt names; those lines, the one place that says so, have no cycle. A module may be a
  part of another: `app/planner` is the folder src/app/planner, and its files are not app's.
- A header below src/ is private: other modules do not include it, but for those whose part it is. A
  module that no other depends on has no public headers.
- A third-party header is included only behind its wall; a part has none but its own.
- No switch over an enum has a `default:`: with one, -Wswitch (of -Wall) does not tell which
  enumerator is missing. Switches over numbers may.
- Modules start kernels with launch() of device.hpp, which puts them on the device's stream, and
  wait with fence(); what Kokkos starts within a kernel, and on the host, is not meant.
- Files with tests are called test_*.
- Files carry the licence line, stay under 600 lines and 100 columns, and name no machine's folders
  and no unfinished work.

Prints one line per violation; exits 1 where there is one.
"""

import re
import sys
from pathlib import Path

MAX_LINES = 600
MAX_COLUMNS = 100

# What is included -> who may. A folder below src/ stands for the module's public headers too.
WALLS = [
    (r"mpi\.h$|mpi-ext\.h$", "MPI", ["src/comm/", "tests/mpi/mpi_main.cpp"]),
    (r"yaml-cpp/", "yaml-cpp", ["src/config/"]),
    (r"hdf5(_hl)?\.h$|H5\w*\.h$", "HDF5", ["src/storage/", "src/trace/"]),
    (r"(cuda|cublas|cub/|thrust/|cute/|cutlass/|nccl)", "CUDA",
     ["kernels/", "src/exec/nccl/"]),
    (r"Kokkos_", "Kokkos", ["kernels/", "src/kernels/", "src/attention/", "src/model/", "src/exec/",
                            "src/app/runtime/failure.cpp"]),  # start-up
    (r"(oneapi/)?dnnl", "oneDNN", ["kernels/"]),
    (r"CLI/", "CLI11", ["src/app/", "src/app/planner/"]),
]
# Names that stood for several things or that the field has another word for -> today's.
CPP = {".cpp", ".hpp", ".cu", ".cuh"}
SCRIPTS = {".py", ".cmake", ".sh", ".sbatch"}
SKIPPED_FOLDERS = {".git", "build", "runs", ".venv", "__pycache__", ".pytest_cache",
                   ".ipynb_checkpoints"}
MACHINE_FOLDER = re.compile(r"(?<![\w.$}/-])/(home|root|work|Users|scratch|gpfs|lustre|mnt)/\w")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
CASE_OR_DEFAULT = re.compile(r"^\s*(?:case\s+([\w:]+)\s*:|default\s*:)(?!:)")
PAST_THE_STREAM = re.compile(
    r"Kokkos::(?:fence\(|parallel_(?:for|reduce|scan)\((?!\s*(?:\"\w+\",\s*)?Kokkos::(?:"
    r"Team(?:Thread|Vector)Range|ThreadVectorRange|RangePolicy<Kokkos::DefaultHost)))")
INCLUDE = re.compile(r'^\s*#\s*include\s*(<|")([^>"]+)[>"]')


def declared_modules(root):
    """{module: modules it may include}, from CMakeLists.txt."""
    text = re.sub(r"#.*", "", (root / "CMakeLists.txt").read_text())
    modules = {}
    for name, arguments in re.findall(r"cadenza_module\(\s*([\w/]+)([^)]*)\)", text):
        listed = re.search(r"\bDEPENDS\b(.*?)(\bLIBRARIES\b|\bDEVICE\b|$)", arguments, re.DOTALL)
        modules[name] = set(listed.group(1).split()) if listed else set()
    return modules


def find_cycle(modules):
    """A list of modules that depend on each other in a ring, or None."""
    done = set()

    def visit(name, path):
        if name in path:
            return path[path.index(name):] + [name]
        if name in done:
            return None
        for other in sorted(modules.get(name, ())):
            ring = visit(other, path + [name])
            if ring:
                return ring
        done.add(name)
        return None

    for module in sorted(modules):
        ring = visit(module, [])
        if ring:
            return ring
    return None


def module_of(path, modules):
    """The module a source belongs to (path relative to the root), or None outside the modules."""
    parts = path.parts
    if parts[0] == "kernels":
        return "kernels"
    if path.as_posix() == "src/main.cpp":
        return "app"
    if path.as_posix() == "src/planner_main.cpp":
        return "app/planner"
    if parts[0] == "src" and len(parts) > 2:
        return whole_or_part(parts[1:-1], modules)
    if parts[:2] == ("include", "cadenza") and len(parts) > 3:
        return whole_or_part(parts[2:-1], modules)
    return None


def whole_or_part(folders, modules):
    """The module of a folder below src/ or include/cadenza/: the part, where one is declared."""
    part = "/".join(folders[:2])
    return part if part in modules else folders[0]


def included_module(root, path, name, modules):
    """The module that owns the header `name` included by `path`, or None if it is not ours."""
    if name.startswith("cadenza/"):
        return module_of(Path("include") / name, modules)
    for folder in (root / path.parent, root, root / "src"):
        header = (folder / name).resolve()
        if header.is_file() and root in header.parents:
            return module_of(header.relative_to(root), modules)
    return None


def behind_wall(path, module, allowed):
    """Whether `path` is in one of the allowed places; src/X/ allows include/cadenza/X/ as well, and
    no part of X."""
    if module and "/" in module:
        allowed = [place for place in allowed if place.startswith(f"src/{module}/")]
    public = [place.replace("src/", "include/cadenza/", 1) for place in allowed
              if place.startswith("src/") and place.endswith("/")]
    return any(path.as_posix().startswith(place) for place in allowed + public)


def check_includes(root, path, lines, modules):
    module = module_of(path, modules)
    if module and module not in modules:
        yield 1, f"module {module} has no cadenza_module line in CMakeLists.txt"
        return
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        name = match.group(2)
        if path.parts[0] == "src" and (root / path.parent / name).is_file() and "/" not in name:
            yield number, f"{name} is included by its name; its path below src is the one style"
        other = included_module(root, path, name, modules)
        private = other != module and not name.startswith("cadenza/")
        if module and other and private and not other.startswith(f"{module}/"):
            yield number, f"module {module} includes {name}, a private header of {other}"
        elif module and other and other != module and other not in modules[module]:
            valid = ", ".join(sorted(modules[module])) or "none"
            yield number, f"module {module} includes {name} of {other}; its DEPENDS are: {valid}"
        if other or path.parts[0] in ("tests", "bench") and name != "mpi.h":
            continue
        for pattern, library, allowed in WALLS:
            if re.match(pattern, name) and not behind_wall(path, module, allowed):
                yield number, f"{library} ({name}) is only for {', '.join(allowed)}"


def check_name(path):
    if path.name.endswith(("_test.cpp", "_test.py")):
        yield 1, f"a file with tests is called test_*{path.suffix}"


def check_switches(lines):
    before = ""  # the case above
    for number, line in enumerate(lines, 1):
        label = CASE_OR_DEFAULT.match(line)
        if label and label.group(1) is None and not before.isdigit():
            yield number, "default: hides from -Wswitch what a switch leaves out; name all of it"
        if label:
            before = label.group(1) or ""


def check_launches(path, lines):
    if path.parts[0] not in ("src", "include") and path.parts[:2] != ("kernels", "portable"):
        return
    if path.name == "device.hpp":
        return
    text = "\n".join(lines)
    for match in PAST_THE_STREAM.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        yield number, "past the stream: launch() starts kernels, fence() waits for them"


def check_text(path, lines):
    code = path.suffix in CPP or path.suffix == ".py"
    if code and len(lines) > MAX_LINES:
        yield len(lines), f"{len(lines)} lines; at most {MAX_LINES}"
    licensed = code or path.suffix in SCRIPTS or path.name == "CMakeLists.txt" or (
        lines and lines[0].startswith("#!"))
    if licensed and not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        yield 1, "no 'SPDX-License-Identifier: Apache-2.0' in the first three lines"
    for number, line in enumerate(lines, 1):
        if code and len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns; at most {MAX_COLUMNS}"
        if MACHINE_FOLDER.search(line):
            yield number, "names a folder of one machine"
        if UNFINISHED.search(line):
            yield number, "marks unfinished work"


def files_below(root):
    for path in sorted(root.iterdir()):
        if path.is_symlink() or path.name in SKIPPED_FOLDERS or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def violations(root):
    """Every violation below `root`, as 'file:line: what'."""
    root = Path(root).resolve()
    modules = declared_modules(root)
    found = []
    for module, depends in sorted(modules.items()):
        for unknown in sorted(depends - modules.keys()):
            found.append(f"CMakeLists.txt:1: module {module} depends on unknown module {unknown}")
        if all(module not in others for others in modules.values()):
            folder = f"include/cadenza/{module}"
            if (root / folder).exists():
                found.append(f"{folder}:1: nobody includes {module}: its headers belong in src/")
    ring = find_cycle(modules)
    if ring:
        found.append(f"CMakeLists.txt:1: modules in a cycle: {' -> '.join(ring)}")
    for file in files_below(root):
        path = file.relative_to(root)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        problems = list(check_text(path, lines))
        if path.suffix in CPP:
            problems += check_includes(root, path, lines, modules)
            problems += check_name(path)
            problems += check_switches(lines)
            problems += check_launches(path, lines)
        found += [f"{path}:{number}: {what}" for number, what in problems]
    return found


def main(arguments):
    root = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).parents[2]
    found = violations(root)
    for line in found:
        print(line)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
