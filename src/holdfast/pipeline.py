"""What users write: inputs, stages, combines, results, as plain DataFrame functions.

    pipe = Pipeline("coffee")
    transactions = pipe.input("transactions", schema="id string, amount bigint")

    @pipe.stage
    def large(transactions): return transactions.where("amount > 100")

A function's parameters name the inputs, stages and combines it is computed from. Everything is
checked when it is defined, so a mistake is shown at the user's own line.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from holdfast._base.ids import digest
from holdfast.config import DEFAULT, STAGE_OPTIONS, Config, StageOptions
from holdfast.engine.graph import Node, NodeKind, Placed, compile_spec, place
from holdfast.engine.spec import PipelineSpec
from holdfast.errors import PipelineInvalid, UsageInvalid
from holdfast.intake.ddl import column_names
from holdfast.intake.tables import BadRowPolicy, TableSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.spark.run import RunReport

F = TypeVar("F", bound=Callable[..., Any])
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_FORMATS = ("csv", "json", "parquet", "binaryFile")
_SCHEMA_FORMATS = ("csv", "json")
_RESULT_FORMATS = ("csv", "parquet")


@dataclass(frozen=True, slots=True)
class Aggregates:
    """The columns of a combine that Holdfast builds: grouped by `by`, merged by the same."""

    by: tuple[str, ...]
    sum: tuple[str, ...]
    min: tuple[str, ...]
    max: tuple[str, ...]
    count: str | None


@dataclass(frozen=True, slots=True)
class Definition:
    """What the executor needs of a node beside its place in the graph."""

    function: Callable[..., Any] | None = None
    """A stage's or a result's function; a combine's `partial`."""
    merge: Callable[..., Any] | None = None
    aggregates: Aggregates | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """A declared input, as `Pipeline.input` returns it."""

    name: str


class Pipeline:
    """A named set of inputs, stages, combines and results.

    `version` stands for the source code of every function that has none of its own: while it
    stays the same, a run resumes although a file was edited. Without it the file is the version.
    """

    def __init__(self, name: str, *, version: str | None = None) -> None:
        """Begin an empty pipeline."""
        self.name = name
        self._version = version
        self._placed: dict[str, Placed] = {}
        self._definitions: dict[str, Definition] = {}
        self._fingerprint: dict[str, str] = {"pipeline": digest(name)}
        self._sources: dict[str, set[str]] = {}
        self._versions: dict[str, str] = {}
        self._check_name(name)

    def input(
        self,
        name: str,
        *,
        schema: str = "",
        format: str = "csv",  # noqa: A002 - the word Spark's readers use
        whole: bool = False,
        optional: bool = False,
        senders: Sequence[str] = ("",),
        on_bad_rows: str = "fail",
    ) -> Input:
        """Declare an input table.

        `schema` is Spark DDL, required for csv and json. `whole`: a small side table, read when
        complete. `optional`: no file is zero chunks. `on_bad_rows`: "fail" stops the run at rows
        that do not fit; "quarantine" keeps them aside, with file and line.
        """
        if format not in _FORMATS:
            self._refuse(
                f"input {name}: no format {format!r}", f"Use one of {', '.join(_FORMATS)}."
            )
        if format in _SCHEMA_FORMATS and not schema.strip():
            self._refuse(f"input {name} has no schema", "Give schema='column type, ...'.")
        self._check_schema(name, schema)
        self._check_list(name, senders=senders)
        if on_bad_rows not in list(BadRowPolicy):
            self._refuse(f"input {name}: on_bad_rows={on_bad_rows!r}", "Use fail or quarantine.")
        if whole and on_bad_rows == BadRowPolicy.QUARANTINE:
            what = f"input {name}: a whole table is read many times and keeps no rows aside"
            self._refuse(what, "Use on_bad_rows='fail', or whole=False.")
        if not senders or len(set(senders)) != len(senders):
            self._refuse(f"input {name}: senders {list(senders)!r}", "Name each sender once.")
        table = TableSpec(
            name=name,
            format=format,
            schema=" ".join(schema.split()),
            segment=1,
            whole=whole,
            optional=optional,
            on_bad_rows=BadRowPolicy(on_bad_rows),
            senders=tuple(senders),
        )
        self._add(Node(name, NodeKind.INPUT, table=table), Definition())
        facts = (table.format, table.schema, str(table.whole), str(table.on_bad_rows))
        self._fingerprint[f"input {name}"] = digest(*facts, *table.senders)
        return Input(name)

    @overload
    def stage(self, function: F) -> F: ...
    @overload
    def stage(
        self,
        *,
        durable: bool = False,
        version: str | None = None,
        log: str | None = None,
        port: int | None = None,
        batch_size: int | None = None,
        fetch_timeout_ms: int | None = None,
    ) -> Callable[[F], F]: ...
    def stage(
        self,
        function: F | None = None,
        *,
        durable: bool = False,
        version: str | None = None,
        log: str | None = None,
        port: int | None = None,
        batch_size: int | None = None,
        fetch_timeout_ms: int | None = None,
    ) -> F | Callable[[F], F]:
        """Define a DataFrame-to-DataFrame step, named like its function.

        It is light by default: fused with what follows and computed again when needed.
        `durable=True` keeps its output: each chunk's rows are computed, and paid for, once.
        The other options say how references to a durable output travel; they change no answer,
        and `[stages.NAME]` in holdfast.toml may say otherwise: `holdfast.config.StageOptions`.
        """
        options = StageOptions(durable, log, port, batch_size, fetch_timeout_ms)

        def define(function: F) -> F:
            name = function.__name__
            parents = self._parents(name, function)
            self._check_options(name, options)
            node = Node(name, NodeKind.STAGE, parents, durable=durable, options=options)
            self._add(node, Definition(function=function))
            self._versions[name] = self._remember(
                "stage", name, function, version, str(durable), *node.parents
            )
            return function

        return define if function is None else define(function)

    def with_stages(self, stages: Mapping[str, StageOptions]) -> Pipeline:
        """Return this pipeline with other options for some of its stages.

        Only `durable` makes it another one: a run that was begun with the other is refused.

        Raises:
            PipelineInvalid: there is no such stage, or it has no use for an option.
        """
        for name in stages:
            if name not in self._placed or self._placed[name].node.kind is not NodeKind.STAGE:
                known = [n for n, one in self._placed.items() if one.node.kind is NodeKind.STAGE]
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]}?" if near else f"Stages: {', '.join(known)}."
                self._refuse(f"[stages.{name}] names no stage of it", hint)
        made = Pipeline(self.name, version=self._version)
        made._definitions, made._sources = dict(self._definitions), dict(self._sources)
        made._fingerprint, made._versions = dict(self._fingerprint), dict(self._versions)
        for name, entry in self._placed.items():
            node = entry.node
            if name in stages:
                options = stages[name].over(node.options)
                self._check_options(name, options)
                node = replace(node, durable=bool(options.durable), options=options)
                facts = (str(node.durable), *node.parents, self._versions[name])
                made._fingerprint[f"stage {name}"] = digest(*facts)
            made._placed[name] = place(node, made._placed, self.name)
        return made

    def combine(
        self,
        name: str,
        source: Input | Callable[..., Any] | str,
        *,
        by: Sequence[str] | None = None,
        sum: Sequence[str] = (),  # noqa: A002 - the words of SQL
        min: Sequence[str] = (),  # noqa: A002
        max: Sequence[str] = (),  # noqa: A002
        count: str | None = None,
        partial: Callable[..., Any] | None = None,
        merge: Callable[..., Any] | None = None,
        version: str | None = None,
    ) -> Input:
        """Define a summary that is made per batch and merged after the barrier.

        Either `by` with `sum`, `min`, `max`, `count`, or two functions: `partial` from the
        source's rows, `merge` from all partial rows. `merge` must give the same whether the
        rows were cut into batches or not; `holdfast.testing.check_combine` tries it.
        """
        self._check_list(name, by=by or (), sum=sum, min=min, max=max)
        columns = by is not None and partial is None and merge is None
        functions = partial is not None and merge is not None
        functions = functions and by is None and not any((sum, min, max, count))
        if not columns and not functions:
            what = f"combine {name} needs either by= or both partial= and merge="
            self._refuse(what, "Give by=[...] with sum=, min=, max=, count=, or two functions.")
        parent = source if isinstance(source, str) else _name_of(source)
        self._known(name, parent)
        node = Node(name, NodeKind.COMBINE, (parent,))
        if by is not None:
            aggregates = Aggregates(tuple(by), tuple(sum), tuple(min), tuple(max), count)
            self._check_aggregates(name, aggregates)
            self._add(node, Definition(aggregates=aggregates))
            self._fingerprint[f"combine {name}"] = digest(parent, repr(aggregates))
        else:
            self._add(node, Definition(function=partial, merge=merge))
            for part, function in (("partial", partial), ("merge", merge)):
                if function is not None:
                    self._remember("combine", f"{name}.{part}", function, version, parent)
        return Input(name)

    def result(
        self,
        name: str,
        *,
        streamed: bool = False,
        order_by: Sequence[str] = (),
        format: str = "csv",  # noqa: A002 - the word Spark's writers use
        version: str | None = None,
    ) -> Callable[[F], F]:
        """Define a named result, computed after the barrier.

        `streamed=True`: computed per batch, its pieces leave at once, provisional until the run
        is DONE and void if it fails; right only for functions with f(a + b) = f(a) + f(b).
        `order_by` is the order of the exported rows; ties go by the other columns.
        `format`: "csv" is exported as one file, "parquet", which keeps types, as a directory.
        """
        self._check_list(name, order_by=order_by)
        if format not in _RESULT_FORMATS:
            self._refuse(f"result {name}: no format {format!r}", "Use csv or parquet.")

        def define(function: F) -> F:
            parents = self._parents(name, function)
            node = Node(
                name,
                NodeKind.RESULT,
                parents,
                streamed=streamed,
                order_by=tuple(order_by),
                format=format,
            )
            self._add(node, Definition(function=function))
            facts = (str(streamed), *order_by, "from", *parents)
            # Runs that began before there was another format go on: CSV leaves no trace.
            facts += ("as", format) if format != "csv" else ()
            self._remember("result", name, function, version, *facts)
            return function

        return define

    def spec(self) -> PipelineSpec:
        """Return what the engine runs."""
        return compile_spec(self.name, self._placed, self._fingerprint)

    def placed(self) -> Mapping[str, Placed]:
        """Return every node by name, with the phase in which it is computed."""
        return dict(self._placed)

    def definition(self, name: str) -> Definition:
        """Return what was given for a node."""
        return self._definitions[name]

    def run(
        self,
        spark: SparkSession,
        *,
        inputs: Mapping[str, Any] | str | Path,
        state: str | Path,
        out: str | Path | None = None,
        config: Config = DEFAULT,
    ) -> RunReport:
        """Run to the end, or resume: same state, same inputs.

        `inputs`: a directory, or table -> path, list of paths, or DataFrame (written once, never
        evaluated again). `out`: where each result is exported.

        Raises:
            SparkLost: the session died. What was committed stands; run again to resume.
            RunFailed: a stage failed too often, or rows do not fit.
        """
        from holdfast.spark.run import run_pipeline

        return run_pipeline(self, spark, inputs=inputs, state=state, out=out, config=config)

    def test(
        self, inputs: Mapping[str, Any], spark: SparkSession | None = None
    ) -> dict[str, DataFrame]:
        """Compute every result from small frames or rows, in two batches, with no state.

        For unit tests: a combine that cannot be cut into batches shows. Returns a frame per
        result, by name. Without `spark` the active session is used, or a local one is started.
        """
        from holdfast.spark.trial import try_pipeline

        return try_pipeline(self, inputs, spark)

    def _add(self, node: Node, definition: Definition) -> None:
        self._check_name(node.name)
        if node.name in self._placed:
            kind = self._placed[node.name].node.kind
            self._refuse(f"the name {node.name} is used twice", f"Rename it, or the {kind}.")
        self._placed[node.name] = place(node, self._placed, self.name)
        self._definitions[node.name] = definition

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            self._refuse(f"the name {name!r}", "Use letters, digits and _, up to 63, no keyword.")

    def _check_list(self, name: str, **values: Sequence[str]) -> None:
        """Refuse a bare word where a list is wanted: it would be taken letter by letter."""
        for option, value in values.items():
            if isinstance(value, str):
                self._refuse(
                    f"{name}: {option}={value!r} is one word", f"Use {option}=[{value!r}]."
                )

    def _check_options(self, name: str, options: StageOptions) -> None:
        """Refuse what is said of a topic that is not there."""
        if options.durable:
            return
        given = {
            option: getattr(options, option)
            for option in STAGE_OPTIONS
            if option != "durable" and getattr(options, option) is not None
        }
        if (given.get("log") or "").startswith("memory:"):
            del given["log"]
        for option, value in given.items():
            what = f"stage {name} is light, so it has no topic, and no use for {option}={value!r}"
            self._refuse(what, "Make it durable, or leave that out.")

    def _check_schema(self, name: str, schema: str) -> None:
        try:
            if schema.strip():
                column_names(schema)
        except UsageInvalid as error:
            self._refuse(f"input {name}: {error.what}", error.remedy)

    def _parents(self, name: str, function: Callable[..., Any]) -> tuple[str, ...]:
        parameters = tuple(inspect.signature(function).parameters)
        if not parameters:
            self._refuse(f"{name} has no parameters", "Name the inputs or stages it reads.")
        for parameter in parameters:
            self._known(name, parameter)
        return parameters

    def _known(self, name: str, parent: str) -> None:
        if parent == name:
            self._refuse(f"{name} depends on itself: a cycle", "Take another parameter.")
        if parent in self._placed:
            if self._placed[parent].node.kind is NodeKind.RESULT:
                what = f"{name} wants {parent}, which is a result and leads nowhere"
                self._refuse(what, "Make it a stage and let both use it.")
            return
        near = difflib.get_close_matches(parent, self._placed, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(self._placed)}."
        what = f"{name} wants {parent}, which is not defined above it (a cycle never can be)"
        self._refuse(what, hint)

    def _check_aggregates(self, name: str, aggregates: Aggregates) -> None:
        made = [*aggregates.sum, *aggregates.min, *aggregates.max]
        made += [aggregates.count] if aggregates.count else []
        columns = [*aggregates.by, *made]
        twice = sorted({column for column in columns if columns.count(column) > 1})
        if twice:
            self._refuse(f"combine {name} makes the column {twice[0]} twice", "Use it once.")
        if not made:
            self._refuse(f"combine {name} computes nothing", "Give sum=, min=, max= or count=.")

    def _remember(
        self,
        kind: str,
        name: str,
        function: Callable[..., Any],
        version: str | None,
        *facts: str,
    ) -> str:
        """Put what defines a function into the fingerprint: its version, or its source file.

        Returns what stands for its version there.
        """
        version = version or self._version
        known = version or "by source"
        self._fingerprint[f"{kind} {name}"] = digest(*facts, known)
        if version is None:
            label, source = _source_of(function)
            # Two files, or two functions without one, may have the same name: both count.
            sources = self._sources.setdefault(label, set())
            sources.add(digest(source))
            self._fingerprint[label] = digest(*sorted(sources))
        return known

    def _refuse(self, what: str, remedy: str) -> None:
        raise PipelineInvalid(pipeline=self.name, what=what, remedy=remedy)


def _name_of(source: Input | Callable[..., Any]) -> str:
    return source.name if isinstance(source, Input) else source.__name__


def _source_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return a label and the text that defines a function: its file, or itself in a notebook."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        path = inspect.getsourcefile(function)
        if path is not None and Path(path).is_file():
            return f"source of {Path(path).name}", Path(path).read_text(encoding="utf-8")
        return f"source of {function.__qualname__}", inspect.getsource(function)
    except (OSError, TypeError):
        return f"source of {function.__qualname__}", _code_text(function.__code__)


def _code_text(code: CodeType) -> str:
    """Return what a function does, as text that is the same in the next process."""
    constants = [
        _code_text(value)
        if isinstance(value, CodeType)
        else repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
        for value in code.co_consts
    ]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants))
