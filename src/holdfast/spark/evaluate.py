"""A pipeline's nodes as frames: users' functions, called with the frames of their parameters.

Within one evaluation each node is built once. Where several outputs go back to one input, the node
at which their ways part is persisted for as long as the evaluation lasts: so one work reads its
input once, however many outputs it has. What follows a persisted node is computed again for each
output: stages are light, and keeping rows costs more than most of them do (docs/performance.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from pyspark.sql import DataFrame, SparkSession

from holdfast.engine.graph import NodeKind, Phase
from holdfast.errors import StageInvalid
from holdfast.spark.combine import merge_of, partial_of
from holdfast.spark.read import empty_frame
from holdfast.spark.trouble import building

if TYPE_CHECKING:
    from holdfast.pipeline import Pipeline


class Evaluation:
    """Frames by name. `bases` are given; everything else is computed from them."""

    def __init__(
        self, pipeline: Pipeline, spark: SparkSession, bases: Mapping[str, DataFrame]
    ) -> None:
        """Begin with the given frames; an input that is not among them is empty."""
        self._pipeline, self._spark = pipeline, spark
        self._placed = pipeline.placed()
        self._frames: dict[str, DataFrame] = dict(bases)
        self._given = frozenset(bases)
        self._persisted: list[DataFrame] = []
        self._kept: set[str] = set()
        """Nodes that can be computed again without reading any input."""
        self._uses: Counter[str] = Counter()

    @contextmanager
    def sharing(self, outputs: Iterable[str], extra: Iterable[str] = ()) -> Iterator[None]:
        """Persist what several of `outputs` use until the block ends.

        `extra` names inputs that have one more use than the graph shows.
        """
        self._count_uses(outputs)
        self._uses.update(extra)
        for name in list(self._given):
            self._share(name)
        try:
            yield
        finally:
            for frame in self._persisted:
                frame.unpersist()

    def frame(self, name: str) -> DataFrame:
        """Return a node's frame: for a combine, merged; for a result, its rows."""
        if name not in self._frames:
            self._frames[name] = self._build(name)
            self._share(name)
        return self._frames[name]

    def partial(self, name: str) -> DataFrame:
        """Return a combine's partial rows of this work."""
        source = self.frame(self._placed[name].node.parents[0])
        with building(f"combine {name}"):
            return partial_of(self._pipeline.definition(name), source)

    def merged(self, name: str, partials: DataFrame) -> DataFrame:
        """Return a combine's rows from all its partial rows."""
        with building(f"combine {name}"):
            return merge_of(self._pipeline.definition(name), partials)

    def _build(self, name: str) -> DataFrame:
        node = self._placed[name].node
        if node.table is not None:
            return empty_frame(self._spark, node.table)
        if node.kind is NodeKind.COMBINE:
            return self.merged(name, self.partial(name))
        parents = [self.frame(parent) for parent in node.parents]
        function = self._pipeline.definition(name).function
        with building(f"{node.kind} {name}"):
            made = function(*parents) if function else None
        # A frame of Spark Connect is of another class than a classic one; both know their session.
        if not hasattr(made, "sparkSession"):
            what = f"it returned {type(made).__name__}, not a DataFrame"
            raise StageInvalid(stage=f"{node.kind} {name}", where="its return", error=what)
        return cast(DataFrame, made)

    def _share(self, name: str) -> None:
        parents = () if name in self._given else self._placed[name].node.parents
        if parents and self._kept.issuperset(parents):
            self._kept.add(name)
        elif self._uses[name] > 1 and self._placed[name].phase is Phase.CHUNK:
            self._frames[name] = self._frames[name].persist()
            self._persisted.append(self._frames[name])
            self._kept.add(name)

    def _count_uses(self, outputs: Iterable[str]) -> None:
        """Count how many consumers each node has on the way to `outputs`, up to given frames."""
        pending = list(outputs)
        self._uses.update(pending)
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen or (name in self._given and name not in outputs):
                continue
            seen.add(name)
            parents = self._placed[name].node.parents if name not in self._given else ()
            self._uses.update(parents)
            pending.extend(parents)
