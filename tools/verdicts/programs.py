"""The programs of a record, and the arguments of ``verify`` for each.

Programs of ``fixtures/`` are found by the signatures of their functions, so that a new fixture
needs no change here. References, machines and policies come from the tables of the tests.
"""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_RANDOM_MODELS = "fixtures/programs/graph/random_models.py"
_RANDOM_SEEDS = range(4)
# The names of functions without parameters that train. Other such functions are parts of programs.
_TRAINING = ("build", "fit", "train")
_IGNORED = shutil.ignore_patterns("logs", "__pycache__", ".git")


def _no_variables(_: Path) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Program:
    """A program, and how it is judged.

    Attributes:
        words: the arguments of ``verify``, without a reference.
        prepare: creates the files of the program in an empty directory, and returns the working
            directory of the command.
        comparison: more arguments for the rules on runs; None if they are never judged.
        arguments: the arguments of the program itself.
        title: the start of its name.
        variables: returns more environment variables for a working directory.
    """

    words: Sequence[str]
    prepare: Callable[[Path], Path]
    comparison: Sequence[str] | None = ()
    arguments: Sequence[str] = ()
    title: str = ""
    variables: Callable[[Path], Mapping[str, str]] = _no_variables

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.title, *self.words, *self._with_dashes)))

    def command(self, options: Sequence[str], *, numbers: bool) -> list[str]:
        """The arguments of ``verify``, with more options."""
        comparison = (self.comparison or ()) if numbers else ()
        return [*self.words, *comparison, *options, *self._with_dashes]

    @property
    def _with_dashes(self) -> Sequence[str]:
        return ["--", *self.arguments] if self.arguments else []


def fixture_programs() -> list[Program]:
    """The programs of this repository, by name. The first declaration of a program applies."""
    found: dict[str, Program] = {}
    for programs in (
        _configured,
        _behaviors,
        _functions,
        _numbers_of_gpus,
        _refactors,
        _scripts,
        _random_models,
        _examples,
        _logs,
    ):
        for program in programs():
            found.setdefault(program.name, program)
    return [found[name] for name in sorted(found)]


def other_programs(text: str) -> list[Program]:
    """Programs outside of this repository.

    Args:
        text: the arguments of ``verify`` for a program; a ``.txt`` file with such a line for each
            program; or a directory of programs. If a file in the directory has a function
            ``build``, the function is judged, and compared with ``single`` on rows of ``batch``.
    """
    path = Path(text)
    if path.is_dir():
        return [_other(_words_of(file), path) for file in sorted(path.glob("[!_]*.py"))]
    if path.suffix == ".txt" and path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines()
        return [_other(shlex.split(line), path.parent) for line in lines if line.strip()]
    return [_other(shlex.split(text), Path())]


def public_programs() -> list[Program]:
    """The programs of `public_programs` with sources and imports at hand."""
    from placement_checks.tf.keras import comes_with_keras_2
    from public_programs.programs import PROGRAMS
    from public_programs.programs import Program as Public
    from public_programs.sources import extract, repository, sources
    from public_programs.verifying import environment

    folder = sources()
    if folder is None:
        return []

    def root_of(program: Public, start: Path) -> Path:
        return [start, *start.parents][len(Path(program.folder).parts)]

    def judged(program: Public, git: Path) -> Program:
        ours, _, theirs = program.typed.partition(" -- ")
        return Program(
            shlex.split(ours),
            lambda into: extract(program, git, into),
            () if program.numbers else None,
            shlex.split(theirs),
            f"{program.name}:",
            lambda start: environment(program, root_of(program, start)),
        )

    return [
        judged(program, git)
        for program in PROGRAMS
        if all(map(find_spec, ("tf_slim", *program.packages)))
        and (comes_with_keras_2() or not program.needs_keras_2)
        and (git := repository(program, folder))
    ]


# Programs of this repository


def _fixture(
    words: Sequence[str],
    comparison: Sequence[str] = (),
    arguments: Sequence[str] = (),
    folder: str = ".",
    **files: str,
) -> Program:
    """A program in a copy of the fixtures, with more files by their names."""
    prepare = partial(_copy_fixtures, folder=folder, files=files)
    title = "" if folder == "." else f"{folder}:"
    return Program(words, prepare, comparison, arguments, title)


def _copy_fixtures(into: Path, *, folder: str, files: Mapping[str, str]) -> Path:
    for name in ("fixtures", "examples"):
        shutil.copytree(ROOT / name, into / name, ignore=_IGNORED)
    for name, text in files.items():
        (into / name).write_text(text, encoding="utf-8")
    return into / folder


def _configured() -> Iterator[Program]:
    """The programs of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for each in project["tool"]["placement_checks"]["programs"]:
        yield _fixture([each["target"], *_options(each)], _comparison(each))


def _options(settings: Mapping[str, Any]) -> list[str]:
    options = [
        word
        for name in ("gpus", "machine")
        if name in settings
        for word in (f"--{name}", str(settings[name]))
    ]
    return options + _sets(settings.get("policy", {}))


def _sets(policy: Mapping[str, Mapping[str, object]]) -> list[str]:
    return [
        word
        for rule, fields in policy.items()
        for name, value in fields.items()
        for word in ("--set", f"{rule}.{name}={json.dumps(value)}")
    ]


def _comparison(settings: Mapping[str, Any]) -> list[str]:
    return [
        word
        for name in ("reference", "batch")
        if settings.get(name) is not None
        for word in (f"--{name}", settings[name])
    ]


def _behaviors() -> Iterator[Program]:
    from fixtures.test_behavior import PROGRAMS

    for target, settings in PROGRAMS.items():
        paths = {name: f"fixtures/{settings[name]}" for name in settings if name != "machine"}
        yield _fixture([f"fixtures/{target}", *_options(settings)], _comparison(paths))


def _functions() -> Iterator[Program]:
    """The functions of all fixtures that build or train, each with its default of GPUs."""
    for kind in ("programs", "defects", "sound"):
        for file in sorted((ROOT / "fixtures" / kind).glob("*/*.py")):
            path = str(file.relative_to(ROOT))
            found = list(_of_workers(file, path) if "workers" in path else _of_file(file, path))
            yield from found
            if not found and "__main__" in file.read_text(encoding="utf-8"):
                yield _fixture([path])


def _of_file(file: Path, path: str) -> Iterator[Program]:
    for function in _public(file):
        name, gpus = function.name, _default_gpus(function)
        if gpus is not None:
            words = [f"{path}:{name}", *_gpus(gpus)]
            yield _fixture(words, _compared(file, path, name))
        elif not function.args.args and (name.startswith(_TRAINING) or name in _one_build()):
            is_single = "single" in name
            if not (is_single and "defects" in path):  # only references of defects
                yield _fixture([f"{path}:{name}", *(_gpus(1) if is_single else ())])


def _gpus(number: int) -> list[str]:
    """The option for a number of GPUs; the default is 2."""
    return [] if number == 2 else ["--gpus", str(number)]


def _compared(file: Path, path: str, name: str) -> list[str]:
    """The options for the reference of a function: itself, unless the tests name another one."""
    single = name.replace("towers", "single")
    names = {each.name for each in _public(file)}
    reference = single if single in names else _references().get((file.name, name), name)
    return _comparison(
        {"reference": f"{path}:{reference}", "batch": _batch_of(file, path, name, names)}
    )


def _batch_of(file: Path, path: str, name: str, names: Collection[str]) -> str | None:
    """The function that returns rows. Correct programs use it only if the tests say so."""
    if "graph" not in path:
        return None
    if f"{name}_batch" in names:
        return f"{path}:{name}_batch"
    is_used = f"{file.name}:{name}" in _batches() if "sound" in path else True
    return f"{path}:batch" if is_used and "batch" in {*names, *_imported(file)} else None


def _of_workers(file: Path, path: str) -> Iterator[Program]:
    from fixtures.test_parameter_servers import MACHINE, POLICY
    from fixtures.test_workers import MACHINE as WORKERS

    by_name = {
        "horovod": ["--horovod", "2"],
        "parameter": ["--machine", MACHINE, *_sets(POLICY)],
        "worker": ["--machine", WORKERS],
        "workers": ["--machine", WORKERS],
        "cluster": [],
    }
    options = by_name[file.stem.partition("_")[0]]
    is_base = "programs" in file.parts
    for function in _public(file):
        name = function.name
        is_program = not is_base or name.startswith(_TRAINING) or _calls_training(function)
        if is_program and name != "main" and not _required(function):
            gpus = _default_gpus(function)
            more = [] if gpus is None else _gpus(gpus)
            of_servers = ["--machine", MACHINE, *_sets(POLICY)] if "servers" in name else None
            reference = ["--reference", f"{path}:{name}"] if "--machine" in options else []
            yield _fixture([f"{path}:{name}", *(of_servers or options), *more], reference)


def _numbers_of_gpus() -> Iterator[Program]:
    """Programs that tests judge with other numbers of GPUs, without a comparison."""
    from fixtures import test_overlap_defects, test_parallel_models, test_styles
    from fixtures import test_unusual_layouts as test_layouts

    for module in (test_parallel_models, test_layouts):
        for function in _public(module.FILE):
            gpus = _default_gpus(function)
            if gpus is not None:
                target = f"{module.FILE.relative_to(ROOT)}:{function.name}"
                yield _without_runs([target, *_gpus(gpus + 2)])
    for target, gpus in test_styles.NUMBERS_OF_GPUS:
        path = os.path.relpath(test_styles.FOLDER / target, ROOT)
        yield _without_runs([path, *_gpus(gpus)])
    for name in test_overlap_defects.DEFECTS:
        yield _without_runs([f"fixtures/defects/graph/{name}.py:build_towers", *_gpus(3)])


def _without_runs(words: Sequence[str]) -> Program:
    program = _fixture(words)
    return Program(program.words, program.prepare, None)


def _refactors() -> Iterator[Program]:
    from fixtures.test_refactors import ADDITIONS, MISTAKES, MNIST, SOUND

    programs = [
        *((programs, change) for programs, change in SOUND),
        *((MNIST, change) for change, _ in ADDITIONS),
        *((programs, change) for programs, change, *_ in MISTAKES),
    ]
    for (_, after), change in programs:
        soft = ["--soft"] if change == "fallback" else []
        yield _fixture([f"fixtures/{after}(change={change!r})", *soft])


def _scripts() -> Iterator[Program]:
    """Whole programs. Without a declaration, only a first argument is passed, the GPUs."""
    from cli.test_as_written import PROGRAMS
    from fixtures.test_scripts import DEFECTS, OPTIONS

    folder = "fixtures/as_written"
    declared = set()
    for row in PROGRAMS:
        ours, _, theirs = row.typed.partition(" -- ")
        words = shlex.split(ours)
        declared.add(words[0])
        yield _fixture(words, (), shlex.split(theirs), folder)
    for file in sorted((ROOT / folder).glob("**/*.py")):
        name = str(file.relative_to(ROOT / folder))
        if name not in declared and file.name != "towers.py":
            arguments = ["{gpus}"] if "argv[1]" in file.read_text(encoding="utf-8") else []
            yield _fixture([name, "--v1"], (), arguments, folder)
    for option, _ in OPTIONS.values():
        yield _fixture(
            [str((DEFECTS / "fed_alike.py").relative_to(ROOT))], (), ["{gpus}", *option]
        )


def _random_models() -> Iterator[Program]:
    from support.builders import builder_of

    make = builder_of(f"{ROOT / _RANDOM_MODELS}:model")
    for seed in _RANDOM_SEEDS:
        model: Any = make(seed)
        for defect in ("", *model.defects):
            file = f"random_{seed}_{defect.replace(' ', '_') or 'sound'}.py"
            change = f".with_defect({defect!r})" if defect else ""
            text = (
                "import sys\n"
                f"sys.path.append({str(Path(_RANDOM_MODELS).parent)!r})\n"
                "from random_models import model\n"
                f"_model = model({seed}){change}\n"
                "def build_towers(num_gpus): return _model.towers(num_gpus)\n"
                "def build_single(): return _model.single()\n"
                "def batch(rng, n): return _model.batch(rng, n)\n"
            )
            yield _fixture(
                [f"{file}:build_towers", *_gpus(model.gpus)],
                ["--reference", f"{file}:build_single", "--batch", f"{file}:batch"],
                **{file: text},
            )


def _examples() -> Iterator[Program]:
    """Each example with its own configuration; examples with rules of their own are for logs."""
    for file in sorted((ROOT / "examples").glob("*/train.py")):
        yield _fixture([], folder=f"examples/{file.parent.name}")


def _logs() -> Iterator[Program]:
    for file in sorted((ROOT / "fixtures" / "logs").glob("*/*.log")):
        path = str(file.relative_to(ROOT))
        yield Program([path], partial(_copy_log, path=path), None)


def _copy_log(into: Path, *, path: str) -> Path:
    (into / path).parent.mkdir(parents=True)
    shutil.copy(ROOT / path, into / path)
    return into


# What tests declare


@cache
def _one_build() -> frozenset[str]:
    from fixtures.test_styles import ONE_BUILD

    return frozenset(target.partition(":")[2] for target in ONE_BUILD)


@cache
def _batches() -> Collection[str]:
    from fixtures.test_styles_numbers import BATCHES

    return frozenset(BATCHES)


@cache
def _references() -> Mapping[tuple[str, str], str]:
    """The references of defects, by file and function."""
    from fixtures.test_functions_defects import BY_NUMBERS
    from fixtures.test_functions_numeric import WRONG_AVERAGES
    from fixtures.test_functions_written_out import MISTAKES

    return {
        **{("functions_numeric.py", train): other for train, other, _ in WRONG_AVERAGES},
        **{("functions_written_out.py", train): other for train, other, _ in MISTAKES},
        **{("functions_defects.py", train): "single" for train in BY_NUMBERS},
    }


# Signatures


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _public(file: Path) -> list[ast.FunctionDef]:
    return [
        node
        for node in _parsed(file).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


def _imported(file: Path) -> set[str]:
    return {
        alias.asname or alias.name
        for node in _parsed(file).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _default_gpus(function: ast.FunctionDef) -> int | None:
    """The default of the first parameter, if the parameter is a number of GPUs."""
    parameters, defaults = function.args.args, function.args.defaults
    if not parameters or not parameters[0].arg.endswith("num_gpus"):
        return None
    if len(defaults) < len(parameters) or not isinstance(defaults[0], ast.Constant):
        return None
    assert isinstance(defaults[0].value, int)
    return defaults[0].value


def _required(function: ast.FunctionDef) -> bool:
    return len(function.args.defaults) < len(function.args.args)


def _calls_training(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.startswith(_TRAINING)
        for node in ast.walk(function)
    )


# Programs outside of this repository


def _words_of(file: Path) -> list[str]:
    names = {function.name for function in _public(file)}
    if "build" not in names:
        return [file.name, "--gpus", "2"]
    options = {"--reference": "single", "--batch": "batch"}
    more = [
        word
        for option, name in options.items()
        if name in names and "single" in names
        for word in (option, f"{file.name}:{name}")
    ]
    return [f"{file.name}:build", "--gpus", "2", *more]


def _other(words: Sequence[str], base: Path) -> Program:
    """A program in a copy of its directory."""
    path = (base / words[0].partition(":")[0]).resolve()
    prefix = words[0].partition(":")[0].removesuffix(path.name)
    ours = [word.removeprefix(prefix) for word in words]
    arguments: list[str] = []
    if "--" in ours:
        end = ours.index("--")
        ours, arguments = ours[:end], ours[end + 1 :]
    comparison = []
    for option in ("--reference", "--batch"):
        if option in ours:
            at = ours.index(option)
            comparison += ours[at : at + 2]
            del ours[at : at + 2]
    return Program(
        ours,
        lambda into: Path(shutil.copytree(path.parent, into / path.parent.name, ignore=_IGNORED)),
        comparison,
        arguments,
        f"{path.parent.name}:",
    )
