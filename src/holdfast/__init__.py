"""Holdfast runs data pipelines on Spark so that a crash loses, doubles and re-buys nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.pipeline import Pipeline

__version__ = "0.1.0"
__all__ = ["HoldfastError", "Pipeline", "__version__"]

_HOMES = {"HoldfastError": "holdfast.errors", "Pipeline": "holdfast.pipeline"}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `holdfast --help` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
