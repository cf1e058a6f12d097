"""A small paid workload for the crash loop, and checkers that read the provider's own log.

The provider writes and fsyncs a line per call; the reader writes and fsyncs a line per answer it
was given. Verdicts come from those and from a reading of the ledger's files by the code below,
never from the ledger's own counters alone.
"""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast._base import frames
from holdfast.errors import CallFailed, FailureRecorded
from holdfast.ledger import compact, file_ledger
from holdfast.ledger.asking import Asker, Pending
from holdfast.ledger.caller import Caller, Limits
from holdfast.ledger.contract import Limit, Slot, Status, inputs_hash, slot_hash
from holdfast.ledger.file_ledger import FileLedger
from holdfast.ledger.rules import OnError, Policy

IN_FLIGHT, AHEAD = 2, 1
LARGE = "large"
KEYS = ["a", "b", "a", LARGE, "bad", "c"]
_FIXED_BYTES = 74
pa.array([""])  # loads pandas if it is there: once here, not in each of a thousand children
_LENGTHS = struct.Struct("<II")


def append_line(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{line}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


def lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def answer_of(key: str) -> str:
    return key * 100 if key == LARGE else f"answer-{key}"


def run(state: Path, keys: list[str], on_error: OnError) -> None:
    """Buy the answers of keys: recover what a crash left, ask, read, compact, close."""
    state.mkdir(exist_ok=True)
    file_ledger.SEGMENT_BYTES, file_ledger.BLOB_BYTES, compact.MERGE_FILES = 250, 60, 2
    ledger = FileLedger(f"file://{state}/ledger")
    ledger.tidy()
    step = ledger.step("step", {"model": "1"}, on_change="refuse")

    def ask(key: str) -> str:
        append_line(state / "calls.log", key)
        if key == "bad":
            raise ValueError("refused")
        return answer_of(key)

    policy = Policy(error=on_error, attempts=9)
    asker = Asker(ask, lambda value: str(value).encode(), "step", ledger.id, policy)
    caller = Caller(
        ledger, asker, limits=Limits(max_in_flight=IN_FLIGHT, intent_ahead=AHEAD), budget=Limit()
    )
    pendings = [
        Pending(Slot(slot_hash(step.id, key), step.id, key, inputs_hash(key.encode())), key)
        for key in keys
    ]
    try:
        position = 0
        for taken in caller.answers([pendings]):
            for answer in taken:
                key = keys[position]
                text = answer.outcome.answer.decode() if answer.outcome.answer else "-"
                assert text == ("-" if key == "bad" else answer_of(key)), f"wrong: {key} {text}"
                append_line(state / "seen.log", key)
                position += 1
    except (CallFailed, FailureRecorded) as error:
        if (error.key, on_error) != ("bad", "raise"):
            raise
    ledger.close()
    ledger = FileLedger(f"file://{state}/ledger")
    ledger.compact()
    ledger.close()


def whole(state: Path) -> None:
    """Every path: a refused row that is released, then kept as a dead letter; blobs; merges."""
    run(state, ["a", "bad"], "raise")
    run(state, KEYS, "dead_letter")


def tiny(state: Path) -> None:
    """Two slots and a compaction."""
    run(state, ["a", "bad"], "dead_letter")


def recorded_keys(state: Path) -> set[str]:
    """Read from the files which keys have an outcome, by a reader of our own."""
    found: set[str] = set()
    ledger = state / "ledger"
    for path in (ledger / "segments").glob("*.seg"):
        for frame in frames.scan(path.read_bytes(), path=str(path)).frames:
            if frame.kind == 2:
                keys, _ = _LENGTHS.unpack_from(frame.payload, _FIXED_BYTES - _LENGTHS.size)
                found.add(frame.payload[_FIXED_BYTES : _FIXED_BYTES + keys].decode())
    for path in (ledger / "settled").glob("*.parquet"):
        if path.read_bytes()[-4:] == b"PAR1":
            found |= set(pq.read_table(path, columns=["key"])["key"].to_pylist())
    return found


def right_after(state: Path) -> None:
    """Whatever was seen is recorded; remember what was recorded and how often it was bought."""
    recorded = recorded_keys(state)
    calls = Counter(lines(state / "calls.log"))
    seen = set(lines(state / "seen.log"))
    assert seen <= recorded, f"early: {seen - recorded} seen, not durable"
    moment = {"recorded": sorted(recorded), "calls": dict(calls)}
    append_line(state / "moments.log", json.dumps(moment, separators=(",", ":")))


def after_recovery(state: Path) -> None:
    """The provider saw each slot as often as the ledger counted, and no recorded one again."""
    calls = Counter(lines(state / "calls.log"))
    moments = [json.loads(line) for line in lines(state / "moments.log")]
    for moment in moments:
        for key in moment["recorded"]:
            bought = (moment["calls"].get(key, 0), calls[key])
            assert bought[0] == bought[1], f"duplicated: recorded {key} was bought again {bought}"
    seen = Counter(lines(state / "seen.log"))
    ledger = FileLedger(f"file://{state}/ledger")
    ledger.verify()
    step = ledger.step("step", {"model": "1"}, on_change="refuse")
    hashes = {key: slot_hash(step.id, key) for key in set(seen)}
    assert {"a", "bad"} <= set(seen), "lost: an answer was never given"
    view = ledger.lookup(list(hashes.values()))
    extra = 0
    for key, hash_ in hashes.items():
        outcome = view.outcomes.get(hash_)
        assert outcome is not None, f"lost: no outcome of {key}"
        wanted = None if key == "bad" else answer_of(key).encode()
        assert outcome.answer == wanted, f"wrong: {key} {outcome}"
        assert (outcome.status is Status.FAILED) == (key == "bad"), f"wrong: {key} {outcome}"
        if key != "bad":
            counted = outcome.attempts
            assert 1 <= calls[key] <= counted, f"duplicated: {key} {calls[key]} > {counted}"
            extra += calls[key] - 1
    assert extra <= len(moments) * (IN_FLIGHT + AHEAD), f"duplicated: {extra} beyond the window"
    assert not view.open, f"wrong: {view.open} left open"
    for part in ("owners", "segments"):
        left = sorted(path.name for path in (state / "ledger" / part).iterdir())
        assert not left, f"wrong: {left} left in {part}"
    ledger.close()
