"""Counters and gauges in Prometheus' text format. Named and explained in docs/operating.md."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.delivery.figures import figures
from holdfast.gateway.desk import Counts, Desk
from holdfast.intake.limits import free_bytes
from holdfast.store.rows import RunState

Sample = tuple[dict[str, object], float]


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def family(name: str, kind: str, words: str, samples: Iterable[Sample]) -> str:
    """Return one metric as text."""
    lines = [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        number = f"{value:d}" if isinstance(value, int) else f"{value:.6f}"
        lines.append(f"{name}{{{inner}}} {number}" if inner else f"{name} {number}")
    return "\n".join(lines) + "\n"


def counted(counts: Counts) -> str:
    """Return what this process counted."""
    requests: list[Sample] = [
        ({"verb": verb, "path": path, "status": status}, number)
        for (verb, path, status), number in sorted(counts.requests.items())
    ]
    seconds: list[Sample] = [
        ({"verb": verb, "path": path}, value)
        for (verb, path), value in sorted(counts.seconds.items())
    ]
    chunks: list[Sample] = [
        ({"outcome": word}, counts.chunks[word]) for word in ("bound", "repeated", "refused")
    ]
    return (
        family("holdfast_gateway_requests_total", "counter", "Requests answered.", requests)
        + family("holdfast_gateway_request_seconds_total", "counter", "Time they took.", seconds)
        + family("holdfast_gateway_chunks_total", "counter", "Chunks that were sent.", chunks)
        + family(
            "holdfast_gateway_chunk_bytes_total",
            "counter",
            "Bytes of chunks taken in.",
            [({}, counts.chunk_bytes)],
        )
    )


def standing(desk: Desk) -> str:
    """Return how the state stands, whoever did it. Asks the store."""
    found = desk.store.read_standing()
    in_states: list[Sample] = [({"state": state}, found.states.get(state, 0)) for state in RunState]
    return (
        family("holdfast_runs", "gauge", "Runs by state.", in_states)
        + family(
            "holdfast_runs_waiting_for_end",
            "gauge",
            "Open runs of which a sender has not said END.",
            [({}, found.without_end)],
        )
        + family(
            "holdfast_backlog_bytes",
            "gauge",
            "Bytes of chunks that wait to be worked on.",
            [({}, desk.store.read_backlog())],
        )
        + family(
            "holdfast_disk_free_bytes",
            "gauge",
            "Room on the disk of the state.",
            [({}, free_bytes(desk.directory.root))],
        )
        + "".join(
            family(one.name, "gauge", one.help, [(dict(key), value) for key, value in one.values])
            for one in figures(desk.store)
        )
    )
