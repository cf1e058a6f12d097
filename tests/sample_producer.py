"""The bundled producer of `examples/producer.py`, as a module and as a process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def producing(state: Path, requests: str) -> Iterator[None]:
    """Run it as a process of its own, on the log of a state directory."""
    arguments = [str(state / "store.sqlite3"), requests, str(state.parent / "answered.txt")]
    process = subprocess.Popen([sys.executable, str(PATH), *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait()
