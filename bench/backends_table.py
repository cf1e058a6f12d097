"""The tables of docs/backends.md, from the result files of `bench.backends`.

Servers and clients are not imported: whoever makes a page needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.cli.measure import Figure, show, table

BACKEND_NAMES = (
    *("memory", "embedded", "kafka"),
    *("tansu-memory", "tansu-sqlite", "tansu-s3"),
    "rabbitmq",
)
PIECE_NAMES = ("1024", "256", "latency", "recovery", "huge")
COLUMNS = (
    *("backend", "records", "produce/s", "of raw", "fetch/s", "of raw", "memory, MiB"),
    *("p50, ms", "p99, ms", "recovery, s"),
)
NOTHING = "Not measured yet: `make bench-backends`.\n"

Results = Mapping[str, tuple[dict[str, Any], list[Figure]]]


def summary(results: Results) -> str:
    """Return one row per backend and record size, each with its share of the raw client's rates."""
    rows = [_row(name, piece, results) for name in BACKEND_NAMES for piece in ("1024", "256")]
    found = [row for row in rows if row is not None]
    if not found:
        return NOTHING
    head = "| " + " | ".join(COLUMNS) + " |"
    return "\n".join([head, "|" + " --- |" * len(COLUMNS), *found]) + "\n"


def _row(name: str, piece: str, results: Results) -> str | None:
    figures = _figures(results, name, piece)
    if not figures:
        return None
    load = figures[0].name.partition(":")[0]
    cells = [name, load]
    ends = (": produce", ": produce, adapter / raw", ": fetch", ": fetch, adapter / raw")
    cells += [_value(figures, end) for end in (*ends, ": peak memory, adapter")]
    # Singles are of 1,024 B; what is recovered is of 256 B.
    singles = _figures(results, name, "latency") if piece == "1024" else []
    killed = _figures(results, name, "recovery") if piece == "256" else []
    cells += [_value(singles, ", p50"), _value(singles, ", p99"), _value(killed, " records")]
    return "| " + " | ".join(cells) + " |"


def _figures(results: Results, name: str, piece: str) -> list[Figure]:
    found = results.get(f"backends/{name}-{piece}")
    return found[1] if found else []


def _value(figures: Sequence[Figure], end: str) -> str:
    return next((show(one.median) for one in figures if one.name.endswith(end)), "")


def backend_section(name: str) -> Callable[[Results], str]:
    """Return what makes the whole table of one backend, a part for each piece that was measured."""

    def make(results: Results) -> str:
        parts = []
        for piece in PIECE_NAMES:
            if (found := results.get(f"backends/{name}-{piece}")) is not None:
                facts, figures = found
                parts.append(_measured(facts) + "\n\n" + "\n".join(table(figures)) + "\n")
        return "\n".join(parts) or NOTHING

    return make


def _measured(facts: Mapping[str, Any]) -> str:
    machine, settings = facts["machine"], facts["settings"]
    share = settings["records"] / settings["of"]
    reduced = "" if share == 1 else f" Not the whole size: {share:.0%} of the records."
    return (
        f"`{settings['piece']}`: {machine['cpu']}, {machine['cores']} cores, {machine['system']};"
        f" load before {machine['load_1m']}; {settings['rounds']} rounds;"
        f" a confirmed record survives {settings['durability']}.{reduced}"
    )
