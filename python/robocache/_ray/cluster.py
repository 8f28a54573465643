"""The Ray cluster that a call runs on."""

from __future__ import annotations

from typing import Any

from robocache._recordings.words import need


def connected(what: str) -> Any:
    """The package ray, connected: to the process's cluster, else to that of RAY_ADDRESS, else to a new one."""
    ray = imported(what)
    if not ray.is_initialized():
        ray.init()
    return ray


def imported(what: str) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise need("Ray", "ray", what) from None
    return ray


def cores(ray: Any) -> int:
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def memory(ray: Any) -> int:
    """The bytes of the cluster's object stores."""
    return int(ray.cluster_resources().get("object_store_memory", 1 << 30))
