from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.growth import check_linear

from placement_checks.core import limits
from placement_checks.core.errors import ConfigError
from placement_checks.core.settings import Policy, Settings
from placement_checks.core.target import Script
from placement_checks.targets.forms import parse_target, resolve, resolve_reference
from placement_checks.verification.configuration import Config, load

AT = "tool.placement_checks"
FIELDS = (
    "gpus, machine, soft, rules, without, policy, reference, batch, args, v1, let, limit, horovod"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a project directory with the given text as pyproject.toml, and enters it."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, *, bare: bool = False) -> Path:
        text = text if bare else f"[{AT}]\n{text}"
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def error_of(folder: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder)
    return caught.value


@pytest.mark.parametrize("text", ["", "[project]\nname = 'p'", f"[{AT}]"])
def test_nothing_configured(project: Callable[..., Path], text: str) -> None:
    assert load(project(text, bare=True)) == Config(Settings(), [])


def test_every_field(project: Callable[..., Path]) -> None:
    folder = project(
        """
        gpus = 4
        soft = true
        rules = ["placeable", "variables-on-host"]
        without = ["no-idle-device"]
        policy.variables-on-host = { device = "/job:ps", allow = ["step"] }
        """
    )
    assert load(folder).settings == Settings(
        gpus=4,
        soft=True,
        rules=("placeable", "variables-on-host"),
        without=("no-idle-device",),
        policy=Policy({"variables-on-host": {"device": "/job:ps", "allow": ("step",)}}),
    )


def test_programs_are_strings_or_tables_with_settings_of_their_own(
    project: Callable[..., Path],
) -> None:
    folder = project(
        """
        programs = [
          "train.py:build",
          { target = "models.net:build", machine = "ps*1; worker*2: gpu*2" },
          { target = "graph.pb", policy.no-fallback.allow = ["Print"] },
        ]
        """
    )
    assert load(folder).programs == [
        ("train.py:build", Settings()),
        ("models.net:build", Settings(machine="ps*1; worker*2: gpu*2")),
        ("graph.pb", Settings(policy=Policy({"no-fallback": {"allow": ("Print",)}}))),
    ]


@pytest.mark.parametrize(
    ("target", "args", "entry"),
    [
        ("train.py", (), Settings(gpus=1)),
        ("./train.py", (), Settings(gpus=1)),
        ("train.py", ("--wide",), Settings(args=("--wide",), limit=9.0)),
        ("train.py", ("--narrow",), None),
        ("train.py:build", (), None),
    ],
)
def test_a_named_target_has_the_settings_of_its_entry(
    target: str, args: tuple[str, ...], entry: Settings | None, project: Callable[..., Path]
) -> None:
    """Arguments of the call select the entry with the same arguments."""
    config = load(
        project(
            """
            soft = true
            programs = [
              { target = "train.py", gpus = 1 },
              { target = "train.py", args = ["--wide"], limit = 9 },
              "other.py",
            ]
            """
        )
    )
    call = Settings(args=args, v1=True)

    assert config.entry_of(target, args) == entry
    own = replace(entry or Settings(), args=args, v1=True, soft=True)
    assert config.select([target], call, "") == [(target, own)]
    assert config.complete_for(target, call) == own


def test_paths_are_relative_to_the_nearest_file(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project('gpus = 3\nprograms = ["a/train.py:build", "net:build", "b/saved"]')
    inner = folder / "a" / "deeper"
    inner.mkdir(parents=True)
    monkeypatch.chdir(folder / "a")
    config = load(inner)
    assert config.settings.gpus == 3
    assert [target for target, _ in config.programs] == [
        "train.py:build",
        "net:build",
        str(folder / "b/saved"),
    ]


def test_paths_of_whole_programs_are_relative_to_the_file(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(
        """
        [[tool.placement_checks.programs]]
        target = "a/train.py"
        args = ["--num_gpus={gpus}"]
        v1 = true
        let = { BATCH = 32, FOLDER = "data" }
        limit = 600
        reference = "a/single.py --rows=8"

        [[tool.placement_checks.programs]]
        target = "package.train"
        """
    )
    (folder / "a").mkdir()
    (folder / "a/train.py").touch()
    (folder / "a/single.py").touch()
    monkeypatch.chdir(folder / "a")

    (train, own), (module, _) = load(folder / "a").programs

    assert (train, module) == ("train.py", "package.train")
    assert own.reference == "single.py --rows=8"
    let = {"BATCH": "32", "FOLDER": "data"}
    both = Settings(v1=True, limit=600)
    assert resolve(train, own) == Script(
        parse_target("train.py"), replace(both, args=("--num_gpus={gpus}",), let=let)
    )
    assert resolve_reference(own) == Script(
        parse_target("single.py"), replace(both, args=("--rows=8",))
    )


def test_a_function_as_reference_has_the_api_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    single = parse_target("train.py:single")
    in_version_2 = Settings(reference="train.py:single", limit=60)

    assert resolve_reference(in_version_2) == single
    in_version_1 = replace(in_version_2, v1=True)
    assert resolve_reference(in_version_1) == Script(single, Settings(v1=True, limit=60))


def test_paths_of_targets_with_arguments_are_relative_to_the_file(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project("programs = ['a/train.py:build(data=\"x.py:y\", n={gpus})', 'net:f(n=1)']")
    (folder / "a").mkdir()
    monkeypatch.chdir(folder / "a")
    assert [target for target, _ in load(folder).programs] == [
        'train.py:build(data="x.py:y", n={gpus})',
        "net:f(n=1)",
    ]


def test_the_nearest_file_wins(project: Callable[..., Path]) -> None:
    folder = project("gpus = 3")
    (folder / "inner").mkdir()
    (folder / "inner" / "pyproject.toml").touch()
    assert load(folder / "inner") == Config(Settings(), [])


@pytest.mark.parametrize(
    "table",
    [
        "tool.placement-checks",
        "tool.placement-check",
        "tool.placement_check",
        "tool.placementchecks",
        "tool.Placement_Checks",
        "tool.placment_checks",
        "placement_checks",
        "placement-checks",
    ],
)
@pytest.mark.parametrize("beside", ["", f"\n[{AT}]\ngpus = 2\n"], ids=["alone", "next to ours"])
def test_a_misspelled_table_is_an_error(
    project: Callable[..., Path], table: str, beside: str
) -> None:
    folder = project(f"[{table}]\ngpus = 4\n{beside}", bare=True)
    error = error_of(folder)
    assert error.object == f"{folder / 'pyproject.toml'}: {table}"
    assert (error.message, error.fix) == ("is ignored", f"write [{AT}]")


@pytest.mark.parametrize(
    "table", ["tool.placement", "tool.checks", "tool.placeholder-checks", "tool.ruff", "placement"]
)
def test_tables_of_other_tools_are_ignored(project: Callable[..., Path], table: str) -> None:
    assert load(project(f"[{table}]\ngpus = 4", bare=True)) == Config(Settings(), [])


def test_a_file_without_read_permission(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    folder = project("gpus = 2")
    monkeypatch.setattr("placement_checks.core.input_files.os.open", refuse)  # root reads all
    assert (
        str(error_of(folder)) == f"{folder / 'pyproject.toml'} cannot be read: Permission denied"
    )


def test_no_file_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    assert load(tmp_path) == Config()


@pytest.mark.parametrize("text", ["gpus = ", "gpus = 2\ngpus = 3"])
def test_malformed_toml_names_the_file(project: Callable[..., Path], text: str) -> None:
    folder = project(text)
    error = error_of(folder)
    assert error.object == str(folder / "pyproject.toml")
    assert error.message.startswith("is not valid TOML: ")


def test_a_binary_file_is_not_toml(project: Callable[..., Path]) -> None:
    folder = project("")
    (folder / "pyproject.toml").write_bytes(b"\xff\xfe")
    assert error_of(folder).message.startswith("is not valid TOML: ")


@pytest.mark.parametrize(
    ("text", "at", "message", "fix"),
    [
        ("gpu = 2", ".gpu", "is not a known field", "did you mean 'gpus'?"),
        ("program = []", ".program", "is not a known field", "did you mean 'programs'?"),
        (
            "zzz = 1",
            ".zzz",
            "is not a known field",
            f"its fields are {FIELDS}, programs",
        ),
        ("gpus = '2'", ".gpus", "'2' does not fit", "give a whole number"),
        ("gpus = true", ".gpus", "True does not fit", "give a whole number"),
        ("gpus = 1.0", ".gpus", "1.0 does not fit", "give a whole number"),
        ("soft = 'yes'", ".soft", "'yes' does not fit", "give true or false"),
        ("rules = 'placeable'", ".rules", "'placeable' does not fit", "give a list of rules"),
        ("without = [1]", ".without", "[1] does not fit", "give a list of rules"),
        ("machine = 8", ".machine", "8 does not fit", "give a machine such as 'worker*8: gpu*4'"),
        ("policy = []", ".policy", "[] does not fit", "give a table of rules"),
        ("policy.placeable = 3", ".policy.placeable", "is not a table of fields", ""),
        (
            "reference = ['a.py:f']",
            ".reference",
            "['a.py:f'] does not fit",
            "give the program for one GPU, such as 'train.py:single'",
        ),
        (
            "batch = 1",
            ".batch",
            "1 does not fit",
            "give a batch function, such as 'train.py:batch'",
        ),
        (
            "gpus = 0",
            ".gpus",
            "0 GPUs: one host has between 1 and 256",
            "give 1 or more; a program for CPUs alone has no towers to check",
        ),
        (
            "machine = 'tpu:8'",
            ".machine",
            "machine 'tpu:8': '8' is not a list of cpu*N and gpu*N",
            'write it like "gpu*4" or "ps*2; worker*8: gpu*4"',
        ),
        (
            "without = ['idle-device']",
            ".without",
            "rule 'idle-device' is not a known rule",
            "did you mean 'no-idle-device'?",
        ),
        (
            "policy.no-fallback.allows = []",
            ".policy.no-fallback.allows",
            "is not a known field",
            "did you mean 'allow'?",
        ),
        (
            "programs = 'a.py:f'",
            ".programs",
            "'a.py:f' does not fit",
            "give a list of targets or tables",
        ),
        ("programs = [1]", ".programs[0]", "has no target", "add target = 'file.py:function'"),
        (
            "programs = ['a.py:f', { gpus = 2 }]",
            ".programs[1]",
            "has no target",
            "add target = 'file.py:function'",
        ),
        (
            "programs = [{ target = 3 }]",
            ".programs[0].target",
            "3 does not fit",
            "give a target, such as 'train.py:build'",
        ),
        (
            "programs = [{ target = 'a.py:f', programs = [] }]",
            ".programs[0].programs",
            "is not a known field",
            f"its fields are {FIELDS}, target",
        ),
        (
            "programs = [{ target = 'a.py:f', soft = 1 }]",
            ".programs[0].soft",
            "1 does not fit",
            "give true or false",
        ),
        (
            "programs = [{ target = 'a.py:f', policy.placeable.a = 1 }]",
            ".programs[0].policy.placeable.a",
            "is not a known field",
            "it has no fields",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_fix(
    project: Callable[..., Path], text: str, at: str, message: str, fix: str
) -> None:
    folder = project(text)
    error = error_of(folder)
    assert error.object == f"{folder / 'pyproject.toml'}: {AT}{at}"
    assert (error.message, error.fix) == (message, fix)


def test_a_section_that_is_not_a_table(project: Callable[..., Path]) -> None:
    error = error_of(project("[tool]\nplacement_checks = 3", bare=True))
    assert error.object.endswith(f"pyproject.toml: {AT}")
    assert error.message == "is not a table"


def test_all_wrong_fields_are_named_at_once(project: Callable[..., Path]) -> None:
    folder = project(
        """
        gpu = 2
        rules = ["zzz", "placeable"]
        programs = [{ target = "a.py:f", soft = 1 }, {}]
        policy.no-fallback = { allow = 3, deny = [] }
        """
    )
    error = error_of(folder)
    assert error.object == str(folder / "pyproject.toml")
    assert error.message.startswith("6 fields are invalid: ")
    for field in (
        "gpu",
        "rules",
        "programs[0].soft",
        "programs[1]",
        "policy.no-fallback.allow",
        "policy.no-fallback.deny",
    ):
        assert re.search(rf"{re.escape(f'{AT}.{field}')}[: ]", error.message)
    assert "'placeable'" not in error.message


def test_each_of_several_fields_has_its_fix(project: Callable[..., Path]) -> None:
    error = error_of(project("gpus = '2'\nsoft = 1"))
    assert error.message == (
        f"2 fields are invalid: {AT}.gpus: '2' does not fit (give a whole number); "
        f"{AT}.soft: 1 does not fit (give true or false)"
    )


def test_gpus_and_machine_are_mutually_exclusive(project: Callable[..., Path]) -> None:
    error = error_of(project("gpus = 2\nmachine = 'gpu*4'"))
    assert error.message == "and machine are mutually exclusive"
    assert error.fix == "give one of them"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("horovod = 1", ".horovod: horovod=1 is not a number of ranks from 2 to 256"),
        ("horovod = 2\ngpus = 2", ": gpus and horovod are mutually exclusive"),
        ("horovod = 2\nmachine = 'gpu*2'", ": machine and horovod are mutually exclusive"),
    ],
)
def test_ranks_are_checked(project: Callable[..., Path], text: str, message: str) -> None:
    folder = project(text)
    assert str(error_of(folder)).startswith(f"{folder / 'pyproject.toml'}: {AT}{message}; ")


def test_gpus_of_the_tasks_in_tf_config(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))

    settings = load(project("gpus = 4\nmachine = 'TF_CONFIG'")).settings

    assert str(settings.parse_machine()) == "worker*2: gpu*4; master=worker/task:1"


@pytest.mark.parametrize(
    "text", ["tool = 3", "tool.placement_checks = 3", f"a = {'9' * 5000}", f"a = {'[' * 3000}"]
)
def test_any_pyproject_is_read_or_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"is not (valid TOML|a table)"):
        load(tmp_path)


VALID = f"""
[{AT}]
gpus = 2
soft = true
without = ["no-idle-device"]
policy.variables-on-host = {{ device = "/job:ps", allow = ["step"] }}

[[{AT}.programs]]
target = "train.py:build"
machine = "ps*1; worker*2: gpu*2"
policy.gradients-equal = {{ scale = 2.5, rows = 8 }}
"""
KEYS = [*re.findall(r"[\w-]+", VALID), "rules", "reference", "batch", "x"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(KEYS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)


def written(value: object) -> str:
    """A value as TOML has it."""
    match value:
        case None:
            return "1979-05-27T07:32:00Z"
        case dict():
            return f"{{{', '.join(f'{key} = {written(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(written, value))}]"
        case str():
            return json.dumps(value).replace("\\ud", "x")  # TOML has no surrogates
        case _:
            return str(value).lower()


@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
@settings(max_examples=200, deadline=None)
def test_any_table_is_read_or_an_error_of_its_fields(
    table: Mapping[str, object],
) -> None:
    with TemporaryDirectory() as folder, suppress(ConfigError):
        text = "".join(f"{key} = {written(value)}\n" for key, value in table.items())
        (Path(folder) / "pyproject.toml").write_text(f"[{AT}]\n{text}", encoding="utf-8")
        load(Path(folder))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_damaged_file_is_read_or_an_error(data: st.DataObject) -> None:
    content = bytearray(VALID.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as folder, suppress(ConfigError):
        (Path(folder) / "pyproject.toml").write_bytes(content)
        load(Path(folder))


@pytest.mark.parametrize(
    "text",
    [
        "a." * 101 + "b = 1",
        "[" + "a." * 101 + "b]",
        "x = {" + '"\\"" . ' * 101 + "b = 1}",
        "'a'." * 100_000 + "b = 1",
    ],
    ids=["key", "table", "quoted", "long"],
)
def test_a_key_of_many_parts_is_refused(project: Callable[..., Path], text: str) -> None:
    folder = project("gpus = 2\n" + text)

    assert str(error_of(folder)) == (
        f"{folder}/pyproject.toml:3 exceeds the limit of 100 parts of a key of a TOML file; "
        "shorten the key"
    )


def test_a_large_file_is_refused(project: Callable[..., Path]) -> None:
    folder = project("gpus = 2\n" + "#" * limits.CONFIG_BYTES.most)

    assert "exceeds the limit of 524,288 bytes of a pyproject.toml" in str(error_of(folder))


def test_many_faults_are_summarized(project: Callable[..., Path]) -> None:
    folder = project("".join(f"field{number} = 1\n" for number in range(1000)))

    assert str(error_of(folder)).endswith("; and 980 more")


@pytest.mark.nightly
@pytest.mark.parametrize("unit", ["a.", '"', '\\"', "a ", ". ", "'a'.x "])
def test_time_grows_with_the_size_of_the_file(unit: str, tmp_path: Path) -> None:
    def read(size: int) -> None:
        (tmp_path / "pyproject.toml").write_text(unit * size)
        with suppress(ConfigError):
            load(tmp_path)

    check_linear(read, 20_000)
