"""Installed versions that reports and baselines name."""

from __future__ import annotations

# The distributions that provide `tensorflow`.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-rocm")


def versions() -> dict[str, str | None]:
    """The installed versions, found without importing TensorFlow."""
    from importlib import metadata  # slow to import

    def version(distribution: str) -> str | None:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None

    return {
        "placement_checks": version("placement_checks"),
        "tensorflow": next(filter(None, map(version, _TENSORFLOWS)), None),
    }
