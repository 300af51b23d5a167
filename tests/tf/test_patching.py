"""Names that may be missing are looked up."""

from __future__ import annotations

import sys

import pytest

from placement_checks.tf.patching import module_or_none


def test_a_module_that_may_not_exist() -> None:
    assert module_or_none("json.decoder") is sys.modules["json.decoder"]
    assert module_or_none("json.no_such") is None
    assert module_or_none("no_such.module") is None


def test_an_existing_module_without_a_submodule(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(lacks_another="import no_such_module")
    pytester.syspathinsert()

    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        module_or_none("lacks_another")
