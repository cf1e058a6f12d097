"""The bundled producer of `examples/producer.py`, loaded as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[1] / "examples" / "producer.py"


def load() -> Any:
    """Return the example as a module."""
    spec = importlib.util.spec_from_file_location("sample_producer", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
