"""The backends, and which of them run on this machine."""

from __future__ import annotations

import importlib.util
import sys

from robocache import _core, _versions


def backends() -> list[tuple[str, bool, str]]:
    """The backends, and which of them run on this machine. Never fails, and imports no framework.

    Returns:
        A list of (name, available, description).

    Examples:
        >>> for name, available, description in rc.backends():
        ...     print(name, available, description)
    """
    return [*_core.backends(), ("torch", *torch_backend())]


def torch_backend() -> tuple[bool, str]:
    loaded = sys.modules.get("torch")
    if loaded is None and ("torch" in sys.modules or importlib.util.find_spec("torch") is None):
        return False, "torch is not installed"
    version = _versions.loaded_version("torch") or package_version("torch")
    sentence = _versions.too_old("torch", version)
    if sentence is not None:
        return False, sentence
    plain = (version or "of an unknown version").split("+")[0]  # torch itself adds +cu130, its package does not
    description = f"torch {plain}, on any of its devices: close to the others, not equal, but for voxels"
    if version is not None and _versions.numbers(version) < _versions.OLDEST_TRACED_TORCH:
        description += "; torch.compile(fullgraph=True) and torch.export need torch 2.5"
    return True, description


def package_version(*names: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    from importlib.metadata import PackageNotFoundError, version  # a third of what `import robocache` took

    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
