"""Holdfast runs data pipelines on Spark so that a crash loses, doubles and re-buys nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.errors import HoldfastError
    from holdfast.pipeline import Pipeline
    from holdfast.spark.pay_once import Budget, DryRun, Limits, OnTrouble, Receipt, pay_once

__version__ = "0.1.0"
__all__ = [
    "Budget",
    "Client",
    "DryRun",
    "HoldfastError",
    "Limits",
    "OnTrouble",
    "Pipeline",
    "Receipt",
    "__version__",
    "pay_once",
]

_HOMES = {
    "Budget": "holdfast.spark.pay_once",
    "Client": "holdfast.client.client",
    "DryRun": "holdfast.spark.pay_once",
    "HoldfastError": "holdfast.errors",
    "Limits": "holdfast.spark.pay_once",
    "OnTrouble": "holdfast.spark.pay_once",
    "Pipeline": "holdfast.pipeline",
    "Receipt": "holdfast.spark.pay_once",
    "pay_once": "holdfast.spark.pay_once",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `holdfast --help` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
