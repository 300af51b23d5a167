"""Makes the assertion of a rule: its signature and docstring follow from the rule's fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence  # noqa: F401
from dataclasses import Field, fields
from inspect import Parameter, Signature
from typing import Any, Literal  # noqa: F401

from placement_checks.core.evidence import Evidence  # noqa: F401
from placement_checks.core.placement import Placement  # noqa: F401
from placement_checks.core.program import Batch, TargetLike  # noqa: F401
from placement_checks.rules.base import Rule
from placement_checks.testing.checking import check_rule, check_run

# The annotations of assertions are text, which `typing.get_type_hints` evaluates in this module.
# So this module imports names that its own code does not use.

_RUN_HELP = """ by running a program and its reference for one GPU.

`towers` and `single` are the functions that build the two programs, with equal names of
variables, or targets that name these functions. `batch(rng, n)` returns arrays of n rows by input
name; a target or a saved case also works. Without it, rows are generated. `gpus` is the number of
GPUs that the towers are built for."""
_FIELDS_HELP = """

A field that is not given has the value of the program's policy, else the default of the rule."""


def assertion_name(rule: type[Rule]) -> str:
    """The name of a rule's assertion: ``assert_no_fallback`` for the rule ``no-fallback``."""
    return f"assert_{rule.name.replace('-', '_')}"


def make_assertion(rule: type[Rule], module: str) -> Callable[..., None]:
    """The function that asserts a rule.

    Args:
        rule: the class of the rule; its fields are the optional parameters of the function.
        module: the module that has the function under its `assertion_name`.
    """
    signature = Signature(list(_parameters(rule)), return_annotation="None")
    name = assertion_name(rule)

    def assertion(*values: Any, **keywords: Any) -> None:
        __tracebackhide__ = True
        try:
            arguments = signature.bind(*values, **keywords)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        given = arguments.arguments
        if is_run(rule):
            programs = (given.pop("towers"), given.pop("single"), given.pop("batch", None))
            check_run(rule.name, *programs, given.pop("gpus", 2), **given)
        else:
            check_rule(given.pop("evidence"), rule.name, **given)

    run_help = _RUN_HELP if is_run(rule) else "."
    fields_help = _FIELDS_HELP if fields(rule) else ""
    assertion.__doc__ = f"Assert `{rule.name}`{run_help}\n\n{rule.explanation()}{fields_help}\n"
    assertion.__name__ = assertion.__qualname__ = name
    assertion.__module__ = module
    assertion.__annotations__ = {
        **{parameter.name: parameter.annotation for parameter in signature.parameters.values()},
        "return": signature.return_annotation,
    }
    vars(assertion)["__signature__"] = signature
    return assertion


def is_run(rule: type[Rule]) -> bool:
    """Whether the assertion runs a program; other assertions take the return value of `place`."""
    return rule.kind == "executed"


def accepted_type(field: Field[Any]) -> str:
    """The type of a field as an argument: sequences replace tuples, and one name may be a str."""
    kinds = [
        re.sub(r"^tuple\[(.*), \.\.\.\]$", r"Sequence[\1]", kind)
        for kind in str(field.type).replace("'", '"').split(" | ")
        if kind != "None"
    ]
    if "Sequence[str]" in kinds:
        kinds = ["str", *(kind for kind in kinds if kind != "str")]
    return " | ".join(kinds)


def _parameters(rule: type[Rule]) -> Sequence[Parameter]:
    """The parameters of an assertion: the program, then the fields of the rule."""
    either, keyword = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    if is_run(rule):
        program = [
            Parameter("towers", either, annotation="TargetLike"),
            Parameter("single", either, annotation="TargetLike"),
            Parameter("batch", either, default=None, annotation="Batch"),
            Parameter("gpus", keyword, default=2, annotation="int"),
        ]
    else:
        program = [Parameter("evidence", either, annotation="Evidence | Placement")]
    kind = program[-1].kind
    settings = [
        Parameter(field.name, kind, default=None, annotation=f"{accepted_type(field)} | None")
        for field in fields(rule)
    ]
    return [*program, *settings]
