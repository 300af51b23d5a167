from __future__ import annotations

from placement_checks.report.page.data import index_texts


def test_a_text_is_in_the_table_once() -> None:
    assert index_texts(["b", "a", "b", ""]) == (["b", "a", ""], [0, 1, 0, 2])
