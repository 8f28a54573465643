"""Whether torch.compile or torch.export is tracing this call. The question never imports torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def _look_for_torch() -> bool:
    global compiling
    compiler: Any = getattr(sys.modules.get("torch"), "compiler", None)
    # Without torch nothing traces. torch before 2.5 cannot trace our calls: it breaks the graph and runs them eagerly.
    if not hasattr(compiler, "substitute_in_graph"):
        return False
    if compiler.is_compiling():
        return True
    compiling = compiler.is_compiling  # once torch is imported, asking it directly costs 70 ns instead of 150
    return False


compiling: Callable[[], bool] = _look_for_torch
_look_for_torch()
