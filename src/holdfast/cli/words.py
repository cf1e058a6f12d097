"""Numbers as people write them: "1 chunk", "2 chunks", "12.3 KB"; and sizes as people give them."""

from __future__ import annotations

import re
from decimal import Decimal

_DECIMAL = ("B", "KB", "MB", "GB", "TB")
_BINARY = {name: 1024**power for power, name in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)}
_FACTORS = {name: 1000**power for power, name in enumerate(_DECIMAL)} | {
    name.upper(): factor for name, factor in _BINARY.items()
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([A-Za-z]*)")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural where it belongs."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size_of(count: float) -> str:
    """Return a number of bytes with three digits at most before the point."""
    power = 0
    # 999.95 would be shown as 1,000.0.
    while count >= 999.95 and power < len(_DECIMAL) - 1:
        count, power = count / 1000, power + 1
    return f"{count:,.1f} {_DECIMAL[power]}" if power else counted(int(count), "byte")


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
