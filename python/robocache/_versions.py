"""The oldest version of each library that robocache serves, and the sentence for an older one.

pyproject.toml has the same bounds, and a test compares the two.
"""

from __future__ import annotations

import re
import sys
from typing import Any

OLDEST = {"numpy": (1, 26), "torch": (2, 4), "jax": (0, 4, 26)}
OLDEST_TRACED_TORCH = (2, 5)  # for torch.compile(fullgraph=True) and torch.export


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers: (2, 4, 1) of "2.4.1+cu121", (2, 4, 0) of "2.4.0a0"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def too_old(name: str, version: str | None) -> str | None:
    """The error sentence for a version that is too old. None if it is served, or not known."""
    found = numbers(version or "")
    oldest = OLDEST[name]
    if not found or found >= oldest:
        return None
    return f"{name} {version} is older than {'.'.join(map(str, oldest))}, the oldest that robocache serves"


def loaded_version(name: str) -> str | None:
    """The version of a module, if it has been imported."""
    version = getattr(sys.modules.get(name), "__version__", None)
    return None if version is None else str(version)


def require(name: str) -> None:
    """Raises ImportError if the imported module is too old. The engine calls this for each new type of array."""
    sentence = too_old(name, loaded_version(name))
    if sentence is not None:
        raise ImportError(sentence, name=name)


def import_torch(what: str) -> Any:
    """Imports torch. `what` is the beginning of the sentence that is raised if it is missing or too old."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        oldest = ".".join(map(str, OLDEST["torch"]))
        sentence = f"{what} needs torch, which is not installed: pip install 'torch>={oldest}'"
        raise ModuleNotFoundError(sentence, name="torch") from None
    require("torch")
    return torch
