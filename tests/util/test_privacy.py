from __future__ import annotations

import getpass
import socket
from pathlib import Path

import pytest

from placement_checks.util.privacy import without_private_names


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "big-box")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ann"))


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("[Errno 2] No such file: '/opt/x/lib/a.py'", "[Errno 2] No such file: '…/a.py'"),
        ("/home/ann/train.py:12 failed", "~/train.py:12 failed"),
        ("in /home/ann", "in …"),
        ("in /home/ann/", "in ~/"),
        ("on big-box by ann", "on <host> by <user>"),
        ("planned by annette", "planned by annette"),
        (
            "w: (Add): /job:localhost/replica:0/task:0/device:GPU:0",
            "w: (Add): /job:localhost/replica:0/task:0/device:GPU:0",
        ),
        ("op tower_0/dense/MatMul on /gpu:0", "op tower_0/dense/MatMul on /gpu:0"),
        ("1/2 and a/b", "1/2 and a/b"),
    ],
)
def test_private_names_are_replaced(text: str, public: str) -> None:
    assert without_private_names(text) == public


def test_a_user_without_name_and_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise OSError("no username set in the environment")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(getpass, "getuser", unknown)
    monkeypatch.setattr(Path, "home", homeless)

    assert without_private_names("/a/b/c ann") == "…/c ann"


@pytest.mark.parametrize("name", ["root", "me"])
def test_names_that_are_words_stay(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: name)

    assert without_private_names("root asks me") == "root asks me"
