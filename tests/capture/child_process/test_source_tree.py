"""A program in a copied repository imports the copy, wherever the repository is on its path."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.repositories import write

ROOT = Path(__file__).parents[3]
# Enters the tree as the child process of a capture does, then runs the program.
ENTER = """
import os, sys
from pathlib import Path
from placement_checks.capture.child_process.source_tree import check_imports, enter_tree
from placement_checks.core.target import Script, SourceTree, Target

repository, copy, target = map(Path, sys.argv[1:])
{before}
tree = SourceTree(copy, repository, "HEAD~1", "abc")
os.chdir(copy)
script = enter_tree(Script(Target("program", str(target), str(target))), tree)
sys.path.insert(0, str(Path(script.target.path).resolve().parent))
{program}
try:
    check_imports("train.py", tree)
except Exception as error:
    print(error)
"""
# What setuptools installs for an editable project whose packages are not all in one directory.
FINDER = """
from importlib.util import spec_from_file_location

class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "mapped":
            file = repository / "src/mapped/__init__.py"
            return spec_from_file_location(name, file, submodule_search_locations=[file.parent])
        if name == "only_new":
            return spec_from_file_location(name, repository / "src/only_new.py")

sys.meta_path.append(Finder)
"""


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """A repository and its copy. Every module prints on import which of the two it is from."""
    repository, copy = tmp_path / "project", tmp_path / "copy"
    modules = ("beside", "package/__init__", "package/part", "space/part", "src/mapped/__init__")
    for root, name in ((repository, "new"), (copy, "old")):
        text = f"print(__name__, '{name}')\n"
        write(root, {f"{module}.py": text for module in (*modules, "src/mapped/part")})
    write(repository, {"src/only_new.py": "", ".venv/lib/site-packages/installed.py": ""})
    return repository, copy


def run(trees: tuple[Path, Path], program: str, *, before: str = "", path: str = "") -> list[str]:
    code = ENTER.format(program=textwrap.dedent(program), before=before)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, trees), str(trees[0] / "train.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_modules_next_to_the_program(trees: tuple[Path, Path]) -> None:
    printed = run(trees, "import beside, package.part, space.part")

    assert printed == ["beside old", "package old", "package.part old", "space.part old"]


def test_directories_in_pythonpath(trees: tuple[Path, Path]) -> None:
    assert run(trees, "import mapped.part", path=f"{trees[0]}/src") == [
        "mapped old",
        "mapped.part old",
    ]


def test_programs_that_this_program_starts(trees: tuple[Path, Path]) -> None:
    program = """
    import subprocess
    subprocess.run([sys.executable, "-c", "import mapped"], check=True)
    """

    assert run(trees, program, path=f"{trees[0]}/src") == ["mapped old"]


def test_editable_installs(trees: tuple[Path, Path]) -> None:
    assert run(trees, "import mapped.part", before=FINDER) == ["mapped old", "mapped.part old"]


def test_a_module_that_only_the_working_tree_has(trees: tuple[Path, Path]) -> None:
    program = """
    try:
        import only_new
    except ModuleNotFoundError as error:
        print(error)
    """

    assert run(trees, program, before=FINDER) == ["No module named 'only_new'"]


def test_a_directory_that_the_program_adds_by_its_absolute_path(
    trees: tuple[Path, Path],
) -> None:
    program = """
    sys.path.insert(0, str(repository / "src"))
    import mapped
    """

    assert run(trees, program) == ["mapped old"]


def test_modules_that_were_imported_before(trees: tuple[Path, Path]) -> None:
    before = "sys.path.insert(0, str(repository)); import package.part, placement_checks"

    assert run(trees, "import package.part", before=before) == [
        *("package new", "package.part new", "package old", "package.part old"),
    ]


def test_an_environment_in_the_repository_is_used(trees: tuple[Path, Path]) -> None:
    folder = f"{trees[0]}/.venv/lib/site-packages"

    assert run(trees, "import installed; print(installed.__file__)", path=folder) == [
        f"{folder}/installed.py"
    ]


def test_a_file_that_is_loaded_by_its_absolute_path(trees: tuple[Path, Path]) -> None:
    program = """
    from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location("by_path", repository / "package/part.py")
    sys.modules["by_path"] = module_from_spec(spec)
    """

    assert run(trees, program) == [
        "train.py: it imports by_path from the working tree, package/part.py, and not from "
        "HEAD~1; import it by name, or load it by a path relative to __file__, in both revisions"
    ]


@pytest.mark.parametrize("link", ["packages", "package/part.py"])
def test_a_module_behind_a_symbolic_link(trees: tuple[Path, Path], link: str) -> None:
    elsewhere = trees[0].parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "outside.py").symlink_to(trees[0] / "package/part.py")
    (elsewhere / "packages").symlink_to(trees[0] / "package")
    file = {"packages": "packages/part.py", "package/part.py": "outside.py"}[link]
    program = f"""
    from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location("linked", {str(elsewhere / file)!r})
    sys.modules["linked"] = module_from_spec(spec)
    """

    (error,) = run(trees, program)

    assert error.startswith("train.py: it imports linked from the working tree, package/part.py,")


def test_a_copy_in_the_repository(trees: tuple[Path, Path]) -> None:
    repository, copy = trees
    inside = copy.rename(repository / "tmp")

    printed = run((repository, inside), "import beside, mapped", path=f"{repository}/src")

    assert printed == ["beside old", "mapped old"]


def test_variables_of_the_environment(trees: tuple[Path, Path]) -> None:
    before = "os.environ |= {'GIT_DIR': str(repository / '.git'), 'PWD': str(repository)}"

    assert run(trees, "print('GIT_DIR' in os.environ, os.environ['PWD'])", before=before) == [
        f"False {trees[1]}"
    ]
