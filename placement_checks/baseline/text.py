"""Writes a baseline as a TOML document that people review, and parses the document.

Each entry of a section has a line of its own, and the last line counts the lines of each section.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, ValidationError, convert, to_builtins

from placement_checks.core import limits
from placement_checks.core.baseline import (
    ANY_NUMBER,
    NO_TOWER,
    PARTS,
    Address,
    Baseline,
    Copies,
    HeldVariable,
)
from placement_checks.core.errors import InputError
from placement_checks.core.placement import Tensor
from placement_checks.core.toml import parse_toml, to_toml

FORM: Final = 4
_KEY: Final = "placement_baseline"  # its value is the form
_UNKNOWN: Final = -1  # a dimension

_Number = Annotated[int, Meta(ge=0, lt=10**18)]
_Positive = Annotated[int, Meta(ge=1, lt=10**18)]


class _Entry(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A line of a section."""


class _Variable(_Entry, kw_only=True):
    name: str
    dtype: str
    shape: list[Annotated[int, Meta(ge=_UNKNOWN, lt=10**18)]] | None = None  # None: unknown rank
    device: str
    slots: list[str] = []  # the device of each slot
    objective: str  # `""` if it is not known


class _Part(_Entry):
    part: str
    device: str  # the default device or symbol


class _Exception(_Entry, kw_only=True):
    part: str
    towers: str | None = None  # None for ops of no tower, or of all towers
    layer: str | None = None  # None for all layers, `""` for ops without a layer
    type: str | None = None  # None for all types
    # Devices or symbols. If there are several, each has its number of ops.
    device: str | Annotated[dict[str, _Positive], Meta(min_length=2)]


class _Ops(_Entry, kw_only=True):
    part: str
    towers: str | None = None  # None for ops of no tower
    types: Annotated[dict[str, _Number], Meta(min_length=1)]


class _Copies(_Entry):
    source: str
    to: str
    copies: _Number
    bytes: _Number
    unknown: _Number = 0  # copies of unknown size


class _Lines(Struct, forbid_unknown_fields=True):
    """The number of lines of each section."""

    variables: int
    towers: int
    parts: int
    exceptions: int
    ops: int
    copies: int


class _Document(Struct, forbid_unknown_fields=True):
    placement_baseline: int
    program: str
    machine: str
    placer: str
    soft: bool
    versions: dict[str, str]
    variables: list[_Variable]
    towers: list[str]
    parts: list[_Part]
    exceptions: list[_Exception]
    ops: list[_Ops]
    copies: list[_Copies]
    lines: _Lines


_HEAD = """\
# The devices of this program's variables and ops. Review it like code.
# Written by pytest --placement-update, or placement-checks verify --baseline DIRECTORY --update;
# after a merge conflict, run that again instead of editing this file."""


def render(baseline: Baseline) -> str:
    """Returns the document of a baseline; equal baselines have equal documents."""
    document = _document(baseline)
    lines = [_HEAD]
    for name, value in to_builtins(document).items():
        if name in _Lines.__struct_fields__:
            entries = [f"  {to_toml(entry)}," for entry in value]
            lines += ["", f"{name} = [", *entries, "]"] if entries else ["", f"{name} = []"]
        else:
            lines += [""] if name == "lines" else []
            lines.append(f"{name} = {to_toml(value)}")
    return "\n".join(lines) + "\n"


def _document(baseline: Baseline) -> _Document:
    sections: dict[str, list[Any]] = {
        "variables": [_variable(held) for held in baseline.variables],
        "towers": list(baseline.towers),
        "parts": [
            _Part(part=part, device=baseline.defaults[part])
            for part in PARTS
            if part in baseline.defaults
        ],
        "exceptions": list(_exceptions(baseline)),
        "ops": list(_ops(baseline)),
        "copies": [
            _Copies(source=source, to=to, copies=number, bytes=size, unknown=unknown)
            for (source, to), (number, size, unknown) in sorted(baseline.copies.items())
        ],
    }
    return _Document(
        placement_baseline=FORM,
        program=baseline.program,
        machine=baseline.machine,
        placer=baseline.placer,
        soft=baseline.soft,
        versions=dict(baseline.versions),
        **sections,
        lines=_Lines(**{name: len(entries) for name, entries in sections.items()}),
    )


def _variable(held: HeldVariable) -> _Variable:
    dtype, shape = held.tensor
    return _Variable(
        name=held.name,
        dtype=dtype,
        shape=None if shape is None else [_UNKNOWN if dim is None else dim for dim in shape],
        device=held.place,
        slots=list(held.slots),
        objective=held.objective,
    )


def _exceptions(baseline: Baseline) -> Iterator[_Exception]:
    """Yields a line for each address; towers with equal places share a line."""
    alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for (part, tower, layer, kind), places in baseline.exceptions.items():
        alike[part, layer, kind, tuple(sorted(places.items()))].append(tower)

    def position(entry: tuple[tuple[Any, ...], list[int]]) -> tuple[Any, ...]:
        (part, layer, kind, places), towers = entry
        names = [(name is not None, name or "") for name in (layer, kind)]
        return PARTS.index(part), names, places, min(towers)

    for (part, layer, kind, places), towers in sorted(alike.items(), key=position):
        (place, number), *_ = places
        device = place if number == ANY_NUMBER else dict(places)
        for each in _by_range(towers):
            yield _Exception(part=part, towers=each, layer=layer, type=kind, device=device)


def _ops(baseline: Baseline) -> Iterator[_Ops]:
    """Yields the numbers of ops by type; towers with equal numbers share a line."""
    alike: dict[tuple[int, tuple[tuple[str, int], ...]], list[int]] = defaultdict(list)
    for (part, tower), types in baseline.types.items():
        alike[PARTS.index(part), tuple(sorted(types.items()))].append(tower)
    for (at, numbers), towers in sorted(
        alike.items(), key=lambda entry: (entry[0][0], min(entry[1]))
    ):
        for each in _by_range(towers):
            yield _Ops(part=PARTS[at], towers=each, types=dict(numbers))


def _by_range(towers: Iterable[int]) -> Iterator[str | None]:
    """Yields None if ops of no tower are among the towers, then the range of the towers."""
    own = [tower for tower in towers if tower != NO_TOWER]
    if len(own) < len(list(towers)):
        yield None
    if own:
        yield ranges(own)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: ``0-2,5``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def _read_ranges(text: str, below: int) -> Iterator[int]:
    """Yields the numbers that `ranges` wrote.

    Raises:
        ValueError: the text contains an invalid range, or a number that is too large.
    """
    for part in text.split(","):
        span = _SPAN.fullmatch(part)
        numbers = range(int(span[1]), int(span[2] or span[1]) + 1) if span else range(0)
        if not numbers or numbers[-1] >= below:
            raise ValueError(f"`{text:.60}` are not towers of this program")
        yield from numbers


_CONFLICT = re.compile(r"^(?:<{7}|={7}|>{7}|\|{7})(?: |\r?$)", re.MULTILINE)
_BEGINNING = re.compile(
    rf"^(?:{_KEY} *= *|# placement baseline, form )([0-9]{{1,9}})\b", re.MULTILINE
)
_STATED = re.compile(r'^(program|machine)(?: = "|: )([^"\n]*?)"?\r?$', re.MULTILINE)
_TARGET = re.compile(r"[A-Za-z0-9_][\w./-]*(:[A-Za-z_][\w.]*)?", re.ASCII)
_MACHINE = re.compile(r"[\w*,;: -]+", re.ASCII)


def is_baseline(text: str) -> bool:
    """Whether a text begins like a baseline of any form, perhaps after a merge conflict marker."""
    return _BEGINNING.search(text) is not None


def rewrite_command(file: str, text: str = "") -> str:
    """Returns the remedy for a file that cannot be read: the commands that write it again.

    Args:
        file: the path of the file.
        text: the text of the file, which may name the program and the machine.
    """
    stated = dict(_STATED.findall(text))
    program, machine = stated.get("program", ""), stated.get("machine", "")
    is_plain = _TARGET.fullmatch(program) and _MACHINE.fullmatch(machine)
    target = f"{program} --machine {shlex.quote(machine)}" if is_plain else "PROGRAM"
    folder = shlex.quote(str(Path(file).parent))
    return (
        "write it again: pytest --placement-update, or "
        f"placement-checks verify {target} --baseline {folder} --update"
    )


def parse(text: str, name: str) -> Baseline:
    """Returns the baseline that `render` wrote.

    Args:
        text: the document.
        name: the path of its file.

    Raises:
        InputError: the text contains merge conflict markers, has another form, or is not complete
            and valid.
    """
    rewrite = rewrite_command(name, text)
    if match := _CONFLICT.search(text):
        raise InputError(
            f"{name}:{_line_at(text, match.start())}",
            "contains merge conflict markers",
            "keep either side, then " + rewrite,
        )
    match = _BEGINNING.search(text)
    if match is None:
        raise InputError(
            name,
            f"is not a baseline: it has no line '{_KEY} = {FORM}'",
            rewrite,
            is_predicate=True,
        )
    form = int(match[1])
    if form != FORM:
        raise InputError(
            f"{name}:{_line_at(text, match.start())}",
            f"is a baseline of form {form}, but this placement_checks reads form {FORM}",
            "install a newer placement_checks" if form > FORM else rewrite,
            is_predicate=True,
        )
    try:
        return _Reader(convert(parse_toml(text, name), _Document)).baseline()
    except InputError as error:
        raise error.copy(InputError, object=error.object or name, fix=rewrite) from None
    except ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        where = _where(text, path or (_UNKNOWN_FIELD.findall(reason) or [""])[0])
        if not path and reason.startswith("Object missing"):
            reason += ", so the file is incomplete"
        raise InputError(
            f"{name}:{where}" if where else name,
            f"is not a valid baseline: {reason[:1].lower()}{reason[1:]}"
            + (f", at `{path}" if path else ""),
            rewrite,
            is_predicate=True,
        ) from None


_UNKNOWN_FIELD = re.compile(r"unknown field `(.*)`")
_PATH = re.compile(r"(\w+)(?:\[(\d+)\])?")


def _line_at(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _where(text: str, path: str) -> int | None:
    """The number of the line with an entry, such as ``copies[0].bytes``; None if unknown."""
    match = _PATH.match(path)
    head = match and re.search(rf"^{match[1]}[ \t]*=[ \t]*(\[\r?$)?", text, re.MULTILINE)
    if not match or not head:
        return None
    line = _line_at(text, head.start())
    if match[2] is None or head[1] is None:  # no list, or all of its entries are in one line
        return line
    left = int(match[2])
    for number, entry in enumerate(text.split("\n")[line:], line + 1):
        if entry.strip() and not entry.lstrip().startswith("#"):
            if left == 0:
                return number
            left -= 1
    return line


class _Reader:
    """Reads a baseline from a document whose fields have the right types.

    The methods raise ValidationError for an invalid entry, with its path, and InputError without
    the name of a file for an entry that exceeds a limit.
    """

    def __init__(self, document: _Document) -> None:
        self._document = document
        self._defaults: dict[str, str] = {}
        self._entries = 0

    def baseline(self) -> Baseline:
        document = self._document
        for section in _Lines.__struct_fields__:
            stated, number = getattr(document.lines, section), len(getattr(document, section))
            if stated != number:
                raise _invalid(f"it has {number} lines, but `lines` states {stated}", section)
        limits.DEVICES.check(len(document.towers), "")
        self._read_parts()
        return Baseline(
            document.program,
            document.machine,
            document.placer,
            document.soft,
            document.versions,
            tuple(self._variables()),
            tuple(document.towers),
            self._defaults,
            self._exceptions(),
            self._types(),
            self._copies(),
        )

    def _variables(self) -> Iterator[HeldVariable]:
        names: set[str] = set()
        for at, each in enumerate(self._document.variables):
            _check_new(each.name, names, "variables", at)
            names.add(each.name)
            shape = None
            if each.shape is not None:
                shape = tuple(None if dim == _UNKNOWN else dim for dim in each.shape)
            tensor = Tensor(each.dtype, shape)
            yield HeldVariable(each.name, tensor, each.device, tuple(each.slots), each.objective)

    def _read_parts(self) -> None:
        for at, each in enumerate(self._document.parts):
            if each.part not in PARTS:
                raise _invalid(f"`{each.part:.60}` is not a part of a step", f"parts[{at}]")
            _check_new(each.part, self._defaults, "parts", at)
            self._defaults[each.part] = each.device

    def _exceptions(self) -> Mapping[Address, Mapping[str, int]]:
        exceptions: dict[Address, Mapping[str, int]] = {}
        for at, each in enumerate(self._document.exceptions):
            places = each.device if isinstance(each.device, dict) else {each.device: ANY_NUMBER}
            for tower in self._towers(each, f"exceptions[{at}]"):
                address = Address(each.part, tower, each.layer, each.type)
                _check_new(address, exceptions, "exceptions", at)
                exceptions[address] = places
        return exceptions

    def _types(self) -> Mapping[tuple[str, int], Mapping[str, int]]:
        types: dict[tuple[str, int], Mapping[str, int]] = {}
        for at, each in enumerate(self._document.ops):
            for tower in self._towers(each, f"ops[{at}]"):
                _check_new((each.part, tower), types, "ops", at)
                types[each.part, tower] = each.types
        return types

    def _towers(self, entry: _Exception | _Ops, path: str) -> Iterator[int]:
        """Yields the towers of an entry; counts them, because ranges of many lines multiply."""
        if entry.part not in self._defaults:
            raise _invalid(f"`{entry.part:.60}` is not in the section `parts`", path)
        towers: Iterable[int] = [NO_TOWER]
        if entry.towers is not None:
            towers = _read_ranges(entry.towers, len(self._document.towers))
        try:
            for tower in towers:
                self._entries += 1
                limits.BASELINE_ENTRIES.check(self._entries, "")
                yield tower
        except ValueError as reason:
            raise _invalid(str(reason), path) from None

    def _copies(self) -> Mapping[tuple[str, str], Copies]:
        copies: dict[tuple[str, str], Copies] = {}
        for at, each in enumerate(self._document.copies):
            _check_new((each.source, each.to), copies, "copies", at)
            copies[each.source, each.to] = Copies(each.copies, each.bytes, each.unknown)
        return copies


def _check_new(key: Any, known: Container[Any], section: str, at: int) -> None:
    if key in known:
        raise _invalid("it repeats an earlier line", f"{section}[{at}]")


def _invalid(reason: str, path: str) -> ValidationError:
    """The error for an entry, in the form of msgspec's own errors."""
    return ValidationError(f"{reason} - at `$.{path}`")
