"""Objects that several JSON documents contain, and JSON for terminals.

Each document is a `Document`, whose fields `report.schemas` turns into a JSON Schema. So documents
and schemas cannot differ.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from msgspec import Meta

from placement_checks.core.errors import PlacementError
from placement_checks.core.versions import versions
from placement_checks.util.text import printable

VERSION: Final = Meta(description="The version of the schema.")
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
UnknownSizes = Annotated[int, Meta(ge=0, description="The number of copies of unknown size.")]


class JsonObject(msgspec.Struct, forbid_unknown_fields=True):
    """An object of a JSON document. A field is optional only if its type has `UnsetType`."""


class Versions(JsonObject):
    """The versions that wrote the document."""

    placement_checks: str | None
    tensorflow: str | None

    @classmethod
    def installed(cls) -> Self:
        return cls(**versions())


class ErrorObject(JsonObject):
    """An error."""

    kind: Literal["usage", "config", "input", "internal"]
    object: Annotated[str, Meta(description="The file, target, option or field at fault.")]
    message: Annotated[str, Meta(description="The fault.")]
    fix: Annotated[str, Meta(description="The fix, or an empty text.")]

    @classmethod
    def from_error(cls, error: PlacementError) -> Self:
        return cls(
            kind=error.kind,
            object=error.object,
            message=error.message,
            fix=error.fix,
        )


class FailedDocument(JsonObject):
    """The output of any command that ends with an error."""

    schema: Annotated[Literal[2], VERSION]
    error: ErrorObject


def to_json(document: Any, indent: int | None = 2) -> str:
    """Returns a document as text, with control characters escaped for terminals.

    Names may contain halves of surrogate pairs, which the encoder of msgspec refuses.
    """
    plain = msgspec.to_builtins(document)
    return escape_controls(json.dumps(plain, indent=indent, ensure_ascii=False))


def escape_controls(text: str) -> str:
    """Returns JSON text with control characters escaped for terminals."""
    return "\n".join(printable(line, _escape) for line in text.split("\n"))


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
