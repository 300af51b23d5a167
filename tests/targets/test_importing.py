"""The user's code is loaded in the environment of ``python file.py``."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

from placement_checks import place
from placement_checks.core.errors import InputError
from placement_checks.targets import importing
from placement_checks.targets.forms import parse_target
from placement_checks.targets.importing import import_program

TRAIN = """
import sys
import tensorflow as tf
import model

flags = list(sys.argv)

def build(num_gpus=2):
    import late
    tf.compat.v1.placeholder(tf.float32, name=f"{model.NAME}_{late.NAME}_{num_gpus}")

class Trainer:
    @staticmethod
    def build():
        tf.compat.v1.placeholder(tf.float32, name="of_a_class")
"""


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two directories that contain files with the same names."""
    found = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        (folder / "model.py").write_text(f"NAME = 'model_{name}'")
        (folder / "late.py").write_text(f"NAME = 'late_{name}'")
        found.append(folder)
    return found


def test_two_files_with_one_name_are_separate(folders: list[Path]) -> None:
    programs = [import_program(parse_target(f"{folder}/train.py:build")) for folder in folders]
    path, modules = list(sys.path), set(sys.modules)

    # Interleaved, as each imports a neighbor late.
    names = [next(iter(place(program, gpus=3).ops)) for program in [*programs, *programs]]

    assert names == ["model_a_late_a_3", "model_b_late_b_3"] * 2
    assert sys.path == path
    assert not {"model", "late"} & (set(sys.modules) - modules)


@pytest.mark.parametrize("add", ["insert(0, ", "append("])
def test_a_program_may_add_directories_of_modules(folders: list[Path], add: str) -> None:
    for folder in folders:
        source = f"import sys; sys.path.{add}{str(folder / 'lib')!r})\n{TRAIN}"
        (folder / "train.py").write_text(source)
        (folder / "lib").mkdir()
        (folder / "late.py").rename(folder / "lib/late.py")
    path = list(sys.path)

    programs = [import_program(parse_target(f"{folder}/train.py:build")) for folder in folders]
    names = [next(iter(place(program, gpus=3).ops)) for program in [*programs, *programs]]

    assert names == ["model_a_late_a_3", "model_b_late_b_3"] * 2
    assert sys.path == path


def test_this_package_stays_loaded_if_a_program_adds_its_directory(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may lie next to a checkout of this package."""
    package = Path(importing.__file__).parents[2]
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path) != package])
    name = "placement_checks.report.formats.sarif"
    sys.modules.pop(name, None)
    source = f"import sys; sys.path.append({str(package)!r})\nimport {name}\n{TRAIN}"
    (folders[0] / "train.py").write_text(source)

    import_program(parse_target(f"{folders[0]}/train.py:build"))

    assert name in sys.modules


def test_a_module_of_the_tests_does_not_hide_a_neighbor(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text("NAME = 'another'")
    monkeypatch.syspath_prepend(tmp_path)
    model = import_module("model")
    del sys.modules["model"]  # so that it is gone again after the test
    monkeypatch.setitem(sys.modules, "model", model)

    evidence = place(f"{folders[0]}/train.py:build")

    assert "model_a_late_a_2" in evidence.ops
    assert sys.modules["model"] is model


def test_the_program_has_its_own_command_line(folders: list[Path]) -> None:
    program = import_program(parse_target(f"{folders[0]}/train.py:build"))

    assert inspect.unwrap(program.build).__globals__["flags"] == [str(folders[0] / "train.py")]


def test_a_function_may_be_an_attribute_of_a_class(folders: list[Path]) -> None:
    assert list(place(f"{folders[0]}/train.py:Trainer.build").ops) == ["of_a_class"]


def test_a_module_is_imported_from_the_current_folder(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = folders[0] / "package_of_this_test"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "towers.py").write_text(
        "import tensorflow as tf\n\n"
        "def build():\n    tf.compat.v1.placeholder(tf.float32, name='x')\n"
    )
    monkeypatch.chdir(folders[0])

    evidence = place("package_of_this_test.towers:build")

    assert evidence.placement.where("x") == "package_of_this_test/towers.py:4"
    del sys.modules["package_of_this_test.towers"]
    del sys.modules["package_of_this_test"]


def test_unparsed_flags_have_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import tensorflow as tf\nfrom absl import flags\n\n"
        "flags.DEFINE_string('tower_name', 'tower', 'A flag.')\n\n"
        "def build():\n    tf.compat.v1.placeholder(tf.float32, name=flags.FLAGS.tower_name)\n"
    )

    assert list(place(f"{tmp_path}/train.py:build").ops) == ["tower"]


def test_a_required_flag_that_is_missing(tmp_path: Path) -> None:
    flags = pytest.importorskip("absl.flags")
    flags.FLAGS.unparse_flags()
    (tmp_path / "train.py").write_text(
        "from absl import flags\n\n"
        "flags.DEFINE_string('folder_of_test', None, 'A flag.', required=True)\n\n"
        "def build():\n    pass\n"
    )

    with pytest.raises(InputError) as caught:
        place(f"{tmp_path}/train.py:build")
    del flags.FLAGS.folder_of_test
    assert str(caught.value) == (
        f"{tmp_path}/train.py:build: absl cannot parse its flags: flag --folder_of_test=None: "
        "Flag --folder_of_test must have a value other than None; correct the arguments of the "
        "program, after -- on the command line"
    )
