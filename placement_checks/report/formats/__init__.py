"""The report formats by name. Each is a module of this package, imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from placement_checks.util.modules import find_modules

if TYPE_CHECKING:
    from placement_checks.report.outcome import Outcome


class Format(NamedTuple):
    """A format of the report: the attribute ``FORMAT`` of its module.

    Attributes:
        write: writes the result of `verify` or `diff --since`.
        use: what the format is for, as the page on formats says it.
        doubt: how the format shows a doubt, on the same page.
        suffix: the suffix of its files; ``""`` if it is for standard output.
        has_errors: whether the report contains errors, for programs that do not read stderr.
    """

    write: Callable[[Outcome, TextIO], None]
    use: str
    doubt: str
    suffix: str = ""
    has_errors: bool = False


class _Formats(Mapping[str, Format]):
    def __init__(self) -> None:
        self._modules = find_modules(__name__, first="text")

    def __getitem__(self, name: str) -> Format:
        loaded: Format = import_module(self._modules[name]).FORMAT
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


FORMATS: Final[Mapping[str, Format]] = _Formats()
