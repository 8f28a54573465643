"""Makes the ops operators of torch, as torch.compile and torch.export need them: `torch.ops.robocache.NAME`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("robocache", "FRAGMENT")


def register(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """The operator of this schema. `run` serves all devices; `fake` makes outputs of the right shapes without data."""
    name = schema[: schema.index("(")]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"robocache::{name}", fake, lib=LIBRARY)


def register_gradient(name: str, backward: Callable[..., Any], keep: Callable[..., None]) -> None:
    """`keep` saves what `backward` needs. The backward has no gradient: AOTAutograd refuses second derivatives."""
    torch.library.register_autograd(f"robocache::{name}", backward, setup_context=keep, lib=LIBRARY)
