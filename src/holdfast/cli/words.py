"""Numbers in words. Pure."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return "1 batch" or "2 batches"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size_of(size: float) -> str:
    """Return a number of bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return counted(int(size), "byte")
