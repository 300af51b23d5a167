from __future__ import annotations

import gc

import pytest

from placement_checks.util.resources import freeze_loaded, gc_paused


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_paused_and_restored(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_frozen_objects_are_not_collected() -> None:
    with freeze_loaded():
        assert not gc.isenabled()
        kept = [object()]

    assert gc.isenabled()
    assert all(each is not kept for each in gc.get_objects())
