"""Sizes as people give them: "64MiB", "64 MB", "67108864"."""

from __future__ import annotations

import re
from decimal import Decimal

_BINARY = {name: 1024**power for power, name in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)}
_FACTORS = {name: 1000**power for power, name in enumerate(("B", "KB", "MB", "GB", "TB"))} | {
    name.upper(): factor for name, factor in _BINARY.items()
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([A-Za-z]*)")


def exact_size(count: int) -> str:
    """Return a number of bytes as it may be given, in the largest unit that leaves it whole."""
    units = [(factor, name) for name, factor in _BINARY.items() if count and count % factor == 0]
    factor, name = max(units, default=(1, ""))
    return f"{count // factor}{name}"


def parse_size(text: str) -> int | None:
    """Return the bytes that "64MiB", "64 MB" or "67108864" mean; None if it means none."""
    found = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(found[2].upper() or "B") if found else None
    if found is None or factor is None:
        return None
    size = Decimal(found[1]) * factor
    return int(size) if size == int(size) else None
