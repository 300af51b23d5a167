"""The generated files: assertions, and the pages on rules, formats, commands and patches."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import click
from assertions import MODULE, PACKAGE, assertion_name, field_types, module, public_names
from fixture_table import fixture_table
from rooms import picture_of_rooms

from placement_checks.cli import cli
from placement_checks.core.impact import Impact
from placement_checks.core.mistakes import CATALOG, WORDS, Mistake, TowerKind
from placement_checks.report.formats import FORMATS
from placement_checks.rules.base import Rule
from placement_checks.rules.examples import example
from placement_checks.rules.registry import NAMES, RULES, in_order
from placement_checks.tf.patches import EXTENDED_MODULES, Patch

ROOT = Path(__file__).parents[1]
COMMAND = "python -m tools.generate"
# Without rules of installed plugins.
_OWN = {rule.name: rule for rule in in_order(RULES[name] for name in NAMES)}
_IMPACTS = {Impact.EXECUTION: "execution", Impact.TRAINING: "training", Impact.LAYOUT: "layout"}
# The proof, and six frequent mistakes, each in another part of a program.
_IN_README = (
    "equal-to-one-gpu",
    "placeable",
    "variables-shared",
    "inputs-distinct",
    "every-tower-counts",
    "gradients-averaged",
    "variables-on-host",
)
_MARKS = (f"<!-- written by {COMMAND} -->", "<!-- until here -->")


def pages() -> Mapping[str, Callable[[], str]]:
    """The content of each page, by path."""
    return {
        MODULE: module,
        PACKAGE: lambda: public_names((ROOT / PACKAGE).read_text(encoding="utf-8")),
        "README.md": lambda: _filled("README.md", _first_rules()),
        "docs/rules.md": lambda: _filled("docs/rules.md", _rules()),
        "docs/mistakes.md": lambda: _filled("docs/mistakes.md", _mistakes()),
        "docs/command_line.md": lambda: _filled("docs/command_line.md", _commands()),
        "docs/formats.md": lambda: _filled("docs/formats.md", _formats()),
        "docs/developing.md": lambda: _filled("docs/developing.md", _patches()),
        "docs/rooms.svg": picture_of_rooms,
        "fixtures/README.md": lambda: _filled("fixtures/README.md", fixture_table()),
    }


def _filled(page: str, text: str) -> str:
    """A page with new text between its marks."""
    before, begin, rest = (ROOT / page).read_text(encoding="utf-8").partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    assert begin, f"{page} has no {_MARKS[0]}"
    assert end, f"{page} has no {_MARKS[1]}"
    return f"{before}{begin}\n{text}{end}{after}"


def _first_rules() -> str:
    """The table of the README: a few frequent mistakes, the most severe impact first."""
    rules = sorted(map(_OWN.__getitem__, _IN_README), key=lambda rule: rule.impact)
    rows = (
        _row(
            f"[`{rule.name}`](docs/rules.md#{rule.name})", _condition(rule), _IMPACTS[rule.impact]
        )
        for rule in rules
    )
    return f"{_row('rule', 'holds when', 'impact')}|---|---|---|\n{''.join(rows)}"


def _rules() -> str:
    """The table of all rules, and a section on each."""
    rows = (
        _row(f"[`{rule.name}`](#{rule.name})", _condition(rule), rule.kind, _IMPACTS[rule.impact])
        for rule in _OWN.values()
    )
    table = f"{_row('rule', 'holds when', 'evidence', 'impact')}|---|---|---|---|\n{''.join(rows)}"
    return "\n".join((table, *map(_section, _OWN.values())))


def _condition(rule: type[Rule]) -> str:
    """The first sentence of the docstring, to be continued from "holds when"."""
    sentence = rule.explanation().splitlines()[0].removesuffix(".")
    return sentence[0].lower() + sentence[1:]


def _section(rule: type[Rule]) -> str:
    """The section on a rule.

    The first paragraph of its docstring is the condition, and the second gives the reason.
    Paragraphs that begin with the name of a field are options. The other paragraphs describe the
    check.
    """
    condition, why, *others = (
        _markdown(part) for part in inspect.cleandoc(rule.__doc__ or "").split("\n\n")
    )
    names = tuple(f"`{field.name}`" for field in fields(rule))
    options = [part for part in others if part.startswith(names or ("\0",))]
    judged = [part for part in others if part not in options]
    parts = (
        f"## {rule.name}",
        condition,
        *judged,
        f"**Why is this bad?** {why}",
        "\n".join(("```diff", *example(rule.name), "```")),
        f"In a test: `{_call(rule)}`",
        *_options(rule, options),
        *_see_also(rule),
    )
    return "\n\n".join(parts) + "\n"


def _call(rule: type[Rule]) -> str:
    given = "towers, single, batch, gpus=2" if rule.kind == "executed" else "evidence"
    set_here = [f"{field.name}=…" for field in fields(rule)]
    return f"{assertion_name(rule)}({', '.join((given, *set_here))})"


def _options(rule: type[Rule], texts: Sequence[str]) -> Iterator[str]:
    """The fields, with the type and the default of each."""
    types = field_types(rule)
    rows = "".join(
        _row(
            f"`{field.name}`",
            f"`{types[field.name].removesuffix(' | None')}`",
            f"`{field.default!r}`",
        )
        for field in fields(rule)
    )
    if rows:
        yield f"{_row('field', 'type', 'default')}|---|---|---|\n{rows.rstrip()}"
        yield from texts


def _see_also(rule: type[Rule]) -> Iterator[str]:
    """Public threads on the mistake that the rule detects."""
    if rule.threads:
        lines = (
            f"* [{thread}](https://github.com/{thread.replace('#', '/issues/')}): {summary}"
            for thread, _, summary in (each.partition(": ") for each in rule.threads)
        )
        yield "Public reports of this mistake:\n\n{}".format("\n".join(lines))


# Facts that texts of mistakes insert, as readers see them.
_FACTS = {
    "towers": "N",
    "text": "the first difference of both graphs",
    "factor": "F",
    "sizes": "9 and 8",
}


class _Facts(dict[str, str]):
    """Facts by name; a fact without an example is its name in italics."""

    def __missing__(self, name: str) -> str:
        return f"*{name.replace('_', ' ')}*"


def _mistakes() -> str:
    """A section on each mistake of the catalog, with the words for towers."""
    return "\n".join(map(_section_of_mistake, CATALOG))


def _section_of_mistake(mistake: Mistake) -> str:
    def filled(text: str, kind: TowerKind = "tower") -> str:
        words = {name: _markdown(word) for name, word in WORDS[kind]._asdict().items()}
        return _markdown(text).format_map(_Facts({**words, **_FACTS}))

    differs = any(name in mistake.fix_for("tower") for name in ("{average}", "{clip}", "{shard}"))
    has_one_text = isinstance(mistake.fix, str) and not differs
    fixes: dict[str, list[str]] = {}
    for kind in list(WORDS)[: 1 if has_one_text else None]:
        fixes.setdefault(filled(mistake.fix_for(kind), kind), []).append(f"{kind}s")
    facts = [
        ("Effect", filled(mistake.consequence)),
        ("Evidence", filled(mistake.evidence)),
        *(
            ("Fix" if "towers" in names else f"Fix for {' and '.join(names)}", text)
            for text, names in fixes.items()
        ),
        ("To decide", mistake.decision),
    ]
    lines = [
        f"## {_sentence(mistake.key)}",
        f"{_sentence(filled(mistake.what))}.",
        *(f"**{name}**: {text}." for name, text in facts if text),
    ]
    return "\n\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _commands() -> str:
    context = click.Context(cli, info_name="placement-checks")
    return "\n".join(
        _command(context, name, command)
        for name in cli.list_commands(context)
        if (command := cli.get_command(context, name)) is not None
    )


def _command(outer: click.Context, name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, parent=outer)
    usage = " ".join(command.collect_usage_pieces(context))
    text = _markdown(inspect.cleandoc(command.help or ""))
    records = [
        record
        for parameter in command.params  # except for --help
        if isinstance(parameter, click.Option)
        and (record := parameter.get_help_record(context)) is not None
    ]
    rows = "".join(_row(f"`{option}`", _markdown(said)) for option, said in records)
    table = f"\n{_row('option', 'meaning')}|---|---|\n{rows}" if rows else ""
    return f"### {name}\n\n`placement-checks {name} {usage}`\n\n{text}\n{table}"


def _formats() -> str:
    """The table of report formats."""
    rows = (
        _row(
            f"`{name}`",
            f"`{format.suffix}`" if format.suffix else "",
            format.use,
            format.doubt,
            "yes" if format.has_errors else "no",
        )
        for name, format in FORMATS.items()
    )
    head = _row("format", "suffix", "use", "doubt", "errors")
    return f"{head}|---|---|---|---|---|\n{''.join(rows)}"


def _patches() -> str:
    """The table of patches."""
    uses = Counter(patch.path for patch in Patch)
    turns: Counter[str] = Counter()
    rows = []
    for patch in Patch:
        turns[patch.path] += 1
        order = str(turns[patch.path]) if uses[patch.path] > 1 else ""
        rows.append(_row(f"`{patch.path}`", patch.purpose, order, patch.only))
    rows += [_row(f"`{name}`", f"add {names}", "", "") for name, names in EXTENDED_MODULES.items()]
    return f"{_row('attribute', 'purpose', 'order', 'version')}|---|---|---|---|\n{''.join(rows)}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _markdown(text: str) -> str:
    """The text with all markup escaped, except for quoted code."""
    quoted = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in quoted
    )
