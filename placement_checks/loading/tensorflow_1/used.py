"""What a program asked of TensorFlow 1 that TensorFlow 2 does not have under that name."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Used:
    """What was asked for in a block of `as_tensorflow_1`; it grows while the block is open.

    Attributes:
        found: what has a place today, such as ``tf.contrib.slim.losses.get_total_loss``.
        missing: what has none, such as ``tf.contrib.gan.gan_model``, in the order in which it was
            asked for; a program may have asked only whether it is there.
    """

    found: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)

    def refusal(self, name: str) -> str:
        """Note that a name has no place, and say so."""
        if name not in self.missing:
            self.missing.append(name)
        return f"{name} is not in this TensorFlow, and --v1 has nothing in its place"


class NotInstalled(ImportError):
    """A package that stands in for a part of TensorFlow 1 is not installed."""

    def __init__(self, needed_for: str, package: str, version: str = "") -> None:
        # Not all that the extra v1 brings, which may be another TensorFlow.
        wanted = f"'{package}=={version}'" if version else package
        super().__init__(
            f"{needed_for} needs {package}, which is not installed; pip install {wanted}",
            name=package,
        )
