"""Constants in the source code that may be the number of GPUs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placement_checks.core.missing import FixedGpus, Missing
from placement_checks.core.program import BuiltGraph, Program
from placement_checks.core.target import Script, Target
from placement_checks.targets.gpu_constants import find_gpu_constants, offer_constants

REASON = FixedGpus("the number is fixed")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.chdir(tmp_path)

    def write(**sources: str) -> None:
        for name, source in sources.items():
            file = tmp_path / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(textwrap.dedent(source))

    return write


def named(target: str) -> Script:
    path, _, function = target.partition(":")
    return Script(Target("function" if function else "program", target, path, function))


def constants(target: str, number: int = 2) -> list[str]:
    return [constant.name for constant in find_gpu_constants(named(target), number)]


@pytest.mark.parametrize(
    "source",
    [
        "def build(): return range(GPUS)",
        "def build():\n    def tower(): return GPUS\n    return tower()",
        "def build(n=GPUS): pass",
        "def towers(): return GPUS\ndef build(): return towers()",
        "DEVICES = ['/gpu:%d' % n for n in range(GPUS)]\ndef build(): return DEVICES",
        "class Towers:\n    number = GPUS\ndef build(): return Towers()",
        "def outer(function): return GPUS\n@outer\ndef build(): pass",
        "if True:\n    N = GPUS\ndef build(): return N",
    ],
)
def test_code_that_reads_the_constant(write: Callable[..., None], source: str) -> None:
    write(train=f"GPUS = 2\n{source}")

    assert constants("train.py:build") == ["GPUS"]


@pytest.mark.parametrize(
    "source",
    [
        "GPUS = 2\ndef build(): return 1",
        "GPUS = 2\ndef build(): return other\ndef unused(): return GPUS",
        "GPUS = 2\ndef build(GPUS=1): return GPUS",
        "GPUS = 2\ndef build():\n    GPUS = 3\n    return GPUS",
        "GPUS = 3\ndef build(): return GPUS",
        "GPUS = True + True\ndef build(): return GPUS",
        "GPUS = '2'\ndef build(): return GPUS",
        "GPUS = 2.0\ndef build(): return GPUS",
        "def build():\n    global GPUS\n    GPUS = 2\n    return GPUS",
        "GPUS = 2\ndef build(x): return x.GPUS",
        "this is no Python",
    ],
)
def test_code_that_does_not(write: Callable[..., None], source: str) -> None:
    write(train=source)

    assert constants("train.py:build") == []


def test_true_is_not_the_number_one(write: Callable[..., None]) -> None:
    write(train="DEBUG = True\nONE = 1\ndef build(): return DEBUG, ONE")

    assert constants("train.py:build", 1) == ["ONE"]


@pytest.mark.parametrize(
    "source",
    [
        "from settings import GPUS\ndef build(): return GPUS",
        "from settings import GPUS as N\ndef build(): return N",
        "import settings\ndef build(): return settings.GPUS",
        "import settings as s\ndef build(): return s.GPUS",
        "from settings import towers as build",
        "from package.numbers import GPUS\ndef build(): return GPUS",
        "from package import numbers\ndef build(): return numbers.GPUS",
    ],
)
def test_a_constant_of_another_module(write: Callable[..., None], source: str) -> None:
    settings = "GPUS = 2\nROWS = 2\ndef towers(): return GPUS"
    write(train=source, settings=settings, package__numbers=settings)

    assert constants("train.py:build") == ["GPUS"]


def test_relative_imports_of_a_module_target(write: Callable[..., None]) -> None:
    write(
        package__train="from .numbers import GPUS\ndef build(): return GPUS",
        package__numbers="GPUS = 2",
    )

    assert constants("package.train:build") == ["GPUS"]


def test_modules_that_import_each_other(write: Callable[..., None]) -> None:
    write(train="from other import build", other="from train import build")

    assert constants("train.py:build") == []


def test_a_whole_program_reads_constants_in_all_its_code(write: Callable[..., None]) -> None:
    write(train="GPUS = 2\nUNUSED = 3\nfor n in range(GPUS): pass\nprint(UNUSED)")

    assert constants("train.py") == ["GPUS"]


def test_a_method_reads_what_its_class_reads(write: Callable[..., None]) -> None:
    write(train="GPUS = 2\nclass Model:\n    def build(self): return GPUS")

    assert constants("train.py:Model.build") == ["GPUS"]


TWO = 2
ALSO_TWO = 2


def builder() -> Any:
    return TWO


def test_a_function_of_a_test_gets_an_option_for_a_test() -> None:
    offer = offer_constants(REASON, Program.from_function(builder), 2)

    assert offer.reason.startswith("the number is fixed, but reads TWO = 2 (")
    assert f"{Path(__file__).name}:" in offer.reason
    assert offer.fix == "if that is the number of GPUs: let={'TWO': '{gpus}'}"


def test_several_constants_are_all_named(write: Callable[..., None]) -> None:
    write(train="GPUS = 2\nROWS = 2\ndef build(): return GPUS * ROWS")

    offer = offer_constants(REASON, named("train.py:build"), 2)

    assert offer == Missing(
        "the number is fixed, but reads GPUS = 2 (train.py:1) and ROWS = 2 (train.py:2)",
        "if one of them is that number: --let GPUS={gpus} or --let ROWS={gpus}",
    )


def test_without_a_constant_the_reason_stays(write: Callable[..., None]) -> None:
    write(train="def build(): return 2")

    assert offer_constants(REASON, named("train.py:build"), 2) is REASON
    assert offer_constants(REASON, BuiltGraph(object()), 2) is REASON  # type: ignore[arg-type]
    assert offer_constants(REASON, Program.from_function(print), 2) is REASON


def test_one_tower_needs_no_constant(write: Callable[..., None]) -> None:
    write(train="RATE = 1\ndef build(): return RATE")

    assert offer_constants(REASON, named("train.py:build"), 1) is REASON
