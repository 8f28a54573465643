"""Which backends there are, and which of them run here."""

from __future__ import annotations

import importlib.util
import sys

from robocache import _core


def backends() -> list[tuple[str, bool, str]]:
    """(name, available, description) of each backend; never fails, and imports no framework."""
    found = package_version("torch")
    there = "torch" in sys.modules or importlib.util.find_spec("torch") is not None
    if there:
        description = (
            f"torch {found or 'of an unknown version'}, on any of its devices: close to the others, not equal,"
        )
        description += " but for voxels"
    else:
        description = "torch is not installed"
    return [*_core.backends(), ("torch", there, description)]


def package_version(*names: str) -> str | None:
    """Of the first of these distributions that is installed."""
    from importlib.metadata import PackageNotFoundError, version  # a third of what `import robocache` took

    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
