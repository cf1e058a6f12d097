"""From what users define to what the engine runs: which node is computed when, and what is kept.

A node's *phase* says when it can be computed:

* SIDE: from whole side tables only; any time after they are complete.
* CHUNK: from the chunks of exactly one table (plus side tables); once per batch.
* FINAL: from a combine, or from two tables at once; after the barrier.

What a FINAL node takes from a CHUNK node is kept as an output of each batch, so every input is
read once. A durable stage ends a segment: its output is a table of the next one.
Pure: no file, no store, no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast.config import StageOptions
from holdfast.engine.spec import (
    OutputKind,
    OutputSpec,
    PipelineSpec,
    SegmentSpec,
    SeriesSpec,
)
from holdfast.errors import PipelineInvalid
from holdfast.intake.tables import TableSpec


class NodeKind(StrEnum):
    """What a name of a pipeline stands for."""

    INPUT = "input"
    STAGE = "stage"
    COMBINE = "combine"
    RESULT = "result"


class Phase(StrEnum):
    """When a node can be computed."""

    SIDE = "side"
    CHUNK = "chunk"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class Node:
    """One definition. `parents` are names of nodes defined before it."""

    name: str
    kind: NodeKind
    parents: tuple[str, ...] = ()
    table: TableSpec | None = None
    durable: bool = False
    streamed: bool = False
    order_by: tuple[str, ...] = ()
    format: str = "csv"
    """Of a result, when it is whole."""
    options: StageOptions = field(default_factory=StageOptions)
    """How references to a durable stage's output travel. `durable` above is what was decided."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A node with its phase, the one table it is computed from, and the side tables it uses.

    `table` is the table whose chunks make this node; `serves` is the table its consumers see,
    which differs for a durable stage: they see the stage itself.
    """

    node: Node
    phase: Phase
    table: str
    serves: str
    segment: int
    pins: frozenset[str]
    reads: frozenset[str]
    """The tables whose chunks it is computed from; none behind a combine."""


def place(node: Node, placed: Mapping[str, Placed], pipeline: str) -> Placed:
    """Find out when `node` can be computed. Its parents are placed already.

    Raises:
        PipelineInvalid: it is asked for at a time when its inputs cannot be complete.
    """
    if node.table is not None:
        phase = Phase.SIDE if node.table.whole else Phase.CHUNK
        pins = frozenset([node.name]) if node.table.whole else frozenset()
        reads = frozenset() if node.table.whole else frozenset([node.name])
        return Placed(node, phase, node.name, node.name, node.table.segment, pins, reads)
    parents = [placed[name] for name in node.parents]
    pins = frozenset().union(*(parent.pins for parent in parents))
    tables = sorted(frozenset().union(*(parent.reads for parent in parents)))
    segment = max((parent.segment for parent in parents), default=1)
    if any(parent.phase is Phase.FINAL for parent in parents) or len(tables) > 1:
        phase = Phase.FINAL
    else:
        phase = Phase.CHUNK if tables else Phase.SIDE
    _check_phase(node, phase, tables, pipeline)
    if node.kind is NodeKind.COMBINE or (node.kind is NodeKind.RESULT and not node.streamed):
        phase = Phase.FINAL
    table = tables[0] if len(tables) == 1 else ""
    if node.durable:
        reads = frozenset([node.name])
        return Placed(node, phase, table, node.name, segment + 1, frozenset(), reads)
    reads = frozenset() if node.kind is NodeKind.COMBINE else frozenset(tables)
    return Placed(node, phase, table, table, segment, pins, reads)


def _check_phase(node: Node, phase: Phase, tables: list[str], pipeline: str) -> None:
    word = {
        NodeKind.COMBINE: f"combine {node.name}",
        NodeKind.RESULT: f"streamed result {node.name}",
        NodeKind.STAGE: f"durable stage {node.name}",
    }.get(node.kind, node.name)
    works_by_chunk = node.kind is NodeKind.COMBINE or node.streamed or node.durable
    if not works_by_chunk or phase is Phase.CHUNK:
        return
    if phase is Phase.SIDE:
        what = f"{word} uses only whole tables, which are complete only when their END came"
        remedy = "Declare the input without whole=True, or compute this in a plain result."
    elif len(tables) > 1:
        what = f"{word} joins the tables {' and '.join(tables)}, whose chunks come apart"
        remedy = "Join them in a plain result, after the barrier, or declare one whole=True."
    else:
        what = f"{word} depends on a combine, which is complete only after the barrier"
        remedy = "Compute this in a plain result."
    raise PipelineInvalid(pipeline=pipeline, what=what, remedy=remedy)


def compile_spec(
    name: str, placed: Mapping[str, Placed], fingerprint: Mapping[str, str]
) -> PipelineSpec:
    """Return the engine's view of a pipeline whose nodes are all placed, in definition order.

    Raises:
        PipelineInvalid: it has no result, or two stages want one topic in two places.
    """
    results = [entry for entry in placed.values() if entry.node.kind is NodeKind.RESULT]
    if not results:
        remedy = "Add one with @pipe.result(...)."
        raise PipelineInvalid(pipeline=name, what="it has no result", remedy=remedy)
    outputs = _outputs(placed)
    tables = [entry.node.table for entry in placed.values() if entry.node.table is not None]
    for output in outputs.values():
        if output.kind is OutputKind.DURABLE:
            segment = placed[output.name].segment
            tables.append(TableSpec(output.name, "parquet", "", segment, produced=True))
    return PipelineSpec(
        name=name,
        tables=tuple(tables),
        segments=_segments(name, tables, outputs, placed),
        series=tuple(_series(entry, placed) for entry in results),
        fingerprint=dict(fingerprint),
    )


def _outputs(placed: Mapping[str, Placed]) -> dict[str, OutputSpec]:
    """Return what batches must write, by name, following back from the results."""
    found: dict[str, OutputSpec] = {}
    pending = [entry for entry in placed.values() if entry.node.kind is NodeKind.RESULT]
    seen: set[str] = set()
    while pending:
        entry = pending.pop()
        if entry.node.name in seen:
            continue
        seen.add(entry.node.name)
        kind = entry.node.kind
        if entry.node.streamed:
            found[entry.node.name] = OutputSpec(entry.node.name, OutputKind.STREAMED, entry.table)
        for name in entry.node.parents:
            parent = placed[name]
            pending.append(parent)
            if parent.node.kind is NodeKind.COMBINE:
                found[name] = OutputSpec(name, OutputKind.PARTIAL, parent.table)
            elif parent.node.durable:
                found[name] = OutputSpec(name, OutputKind.DURABLE, parent.table)
            elif _kept(parent, entry, kind):
                found.setdefault(name, OutputSpec(name, OutputKind.KEPT, parent.table))
    return found


def _kept(parent: Placed, child: Placed, kind: NodeKind) -> bool:
    """Tell whether `child`, computed after the barrier, needs rows that batches see."""
    after_barrier = child.phase is Phase.FINAL and kind is not NodeKind.COMBINE
    return after_barrier and parent.phase is Phase.CHUNK


def _segments(
    pipeline: str,
    tables: list[TableSpec],
    outputs: Mapping[str, OutputSpec],
    placed: Mapping[str, Placed],
) -> tuple[SegmentSpec, ...]:
    of_table = {table.name: table.segment for table in tables}
    segments = []
    for number in range(1, max(of_table.values(), default=1) + 1):
        mine = tuple(out for out in outputs.values() if of_table[out.table] == number)
        pins = sorted(set().union(*(_pins_of(out, placed) for out in mine)))
        streams = tuple(t.name for t in tables if t.segment == number and not t.whole)
        stages = [placed[t.name].node for t in tables if t.segment == number and t.produced]
        options = _options_of(pipeline, stages)
        segments.append(SegmentSpec(number, streams, mine, tuple(pins), options))
    return tuple(segments)


def _options_of(pipeline: str, stages: list[Node]) -> StageOptions:
    """Return how the references of a segment travel: they share one topic, so all in one way."""
    found = [(stage.name, replace(stage.options, durable=None)) for stage in stages]
    for name, options in found:
        if options != found[0][1]:
            what = f"durable stages {found[0][0]} and {name} share a topic, with different options"
            remedy = "Give both the same log, port, batch_size and fetch_timeout_ms."
            raise PipelineInvalid(pipeline=pipeline, what=what, remedy=remedy)
    return found[0][1] if found else StageOptions()


def _pins_of(output: OutputSpec, placed: Mapping[str, Placed]) -> frozenset[str]:
    """Return the side tables an output is computed from, a durable stage's own among them."""
    parents = placed[output.name].node.parents
    own = placed[output.name].pins
    return own.union(*(placed[name].pins for name in parents))


def _series(entry: Placed, placed: Mapping[str, Placed]) -> SeriesSpec:
    datasets: set[str] = set()
    pins: set[str] = set()
    if entry.node.streamed:
        datasets.add(entry.node.name)
    else:
        _collect_final(entry, placed, datasets, pins)
    node = entry.node
    return SeriesSpec(
        node.name,
        node.streamed,
        node.order_by,
        tuple(sorted(datasets)),
        tuple(sorted(pins)),
        node.format,
    )


def _collect_final(
    entry: Placed, placed: Mapping[str, Placed], datasets: set[str], pins: set[str]
) -> None:
    for name in entry.node.parents:
        parent = placed[name]
        if parent.node.kind is NodeKind.COMBINE or parent.phase is Phase.CHUNK:
            datasets.add(name)
        elif parent.node.table is not None:
            pins.add(name)
        else:
            _collect_final(parent, placed, datasets, pins)
