"""RoboCache on a Ray cluster: many workers build a cache, a Ray dataset reads it, and Ray Train resumes in an epoch.

It needs Ray: pip install 'robocache[ray]'. docs/guides/ray.md shows how to use it.
"""

from __future__ import annotations

from robocache._ray.build import build
from robocache._ray.read import read
from robocache._ray.train import loader, save

__all__ = ["build", "loader", "read", "save"]

for _public in (build, loader, read, save):
    _public.__module__ = __name__  # where users find them
del _public


def __dir__() -> list[str]:
    return sorted(__all__)  # what users need: no helpers, nothing imported
