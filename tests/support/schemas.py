"""Documents that are checked with their JSON Schema."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from placement_checks.report.schemas import schema


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema(name)))


def valid(name: str, text: str) -> dict[str, Any]:
    """The parsed document. Fails if the document does not match its schema."""
    document = json.loads(text)
    ended = name != "verify" and "error" in document
    problems = [
        f"{problem.json_path}: {problem.message}"
        for problem in validator("error" if ended else name).iter_errors(document)
    ]
    assert problems == [], problems
    assert isinstance(document, dict)
    return document
