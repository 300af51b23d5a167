"""JSON Schema (draft 2020-12) of each command's document, and of errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from placement_checks.report.commands.doctor import DoctorDocument
from placement_checks.report.commands.log import LogDocument
from placement_checks.report.commands.place import PlaceDocument
from placement_checks.report.commands.since import SinceDocument
from placement_checks.report.commands.time import TimeDocument
from placement_checks.report.common.baseline import DiffDocument
from placement_checks.report.common.json import FailedDocument, JsonObject
from placement_checks.report.formats.json import (
    ERRORS_HAVE_A_FIRST,
    FIGURES,
    NothingVerified,
    VerifyDocument,
)


class _Output(NamedTuple):
    """The JSON output of a command.

    Attributes:
        title: the command.
        documents: the documents that it may print.
        others: objects that the schema refers to in `extra_json_schema`.
        more: further keywords of the schema.
    """

    title: str
    documents: tuple[type[JsonObject], ...]
    others: tuple[type[JsonObject], ...] = ()
    more: Mapping[str, Any] = {}


_OUTPUTS: Final[Mapping[str, _Output]] = {
    "verify": _Output(
        "placement-checks verify --format json",
        (VerifyDocument, NothingVerified),
        tuple(FIGURES.values()),
        ERRORS_HAVE_A_FIRST,
    ),
    "place": _Output("placement-checks place --transfers --format json", (PlaceDocument,)),
    "log": _Output("placement-checks log --format json", (LogDocument,)),
    "diff": _Output("placement-checks diff --format json", (DiffDocument, SinceDocument)),
    "time": _Output("placement-checks time --format json", (TimeDocument,)),
    "doctor": _Output("placement-checks doctor --format json", (DoctorDocument,)),
    "error": _Output(
        "What any command prints with --format json if an error ends it", (FailedDocument,)
    ),
}
NAMES: Final = tuple(_OUTPUTS)


def schema(name: str) -> str:
    """The text of the schema of a command's output, or of ``error``."""
    output = _OUTPUTS[name]
    refs, objects = msgspec.json.schema_components((*output.documents, *output.others))
    first = objects[output.documents[0].__name__]
    (version,) = first["properties"]["schema"]["enum"]
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:placement-checks:{name}:{version}",
        "title": output.title,
        "anyOf": refs[: len(output.documents)],
        **output.more,
        "$defs": objects,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
