"""When each node of a pipeline is computed, what batches keep, and what can never work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.engine.graph import Node, NodeKind, Phase, Placed, compile_spec, place
from holdfast.engine.spec import OutputKind, OutputSpec, PipelineSpec
from holdfast.errors import PipelineInvalid
from holdfast.intake.tables import TableSpec

Graph = dict[str, Placed]


def graph(*nodes: Node) -> Graph:
    placed: Graph = {}
    for node in nodes:
        placed[node.name] = place(node, placed, "p")
    return placed


def table(name: str, *, whole: bool = False) -> Node:
    return Node(name, NodeKind.INPUT, table=TableSpec(name, "csv", "a int", 1, whole=whole))


def stage(name: str, *parents: str, durable: bool = False) -> Node:
    return Node(name, NodeKind.STAGE, parents, durable=durable)


def combine(name: str, parent: str) -> Node:
    return Node(name, NodeKind.COMBINE, (parent,))


def result(name: str, *parents: str, streamed: bool = False) -> Node:
    return Node(name, NodeKind.RESULT, parents, streamed=streamed)


def spec(*nodes: Node) -> PipelineSpec:
    return compile_spec("p", graph(*nodes), {"pipeline": "x"})


def outputs(of: PipelineSpec, segment: int = 1) -> set[tuple[str, OutputKind, str]]:
    return {(o.name, o.kind, o.table) for o in of.segments[segment - 1].outputs}


def test_an_input_is_computed_per_chunk_and_a_whole_one_is_a_side_table() -> None:
    placed = graph(table("t"), table("w", whole=True))
    assert placed["t"].phase is Phase.CHUNK
    assert placed["t"].pins == frozenset()
    assert placed["w"].phase is Phase.SIDE
    assert placed["w"].pins == {"w"}


def test_a_stage_over_whole_tables_alone_is_a_side_table_too() -> None:
    placed = graph(table("v", whole=True), table("w", whole=True), stage("s", "v", "w"))
    assert placed["s"].phase is Phase.SIDE
    assert placed["s"].pins == {"v", "w"}


def test_a_stage_over_one_table_and_side_tables_is_computed_per_chunk_and_pins_them() -> None:
    placed = graph(table("t"), table("w", whole=True), stage("s", "t", "w"), stage("u", "s"))
    assert placed["u"].phase is Phase.CHUNK
    assert placed["u"].table == "t"
    assert placed["u"].pins == {"w"}


def test_a_stage_over_two_tables_is_computed_after_the_barrier() -> None:
    placed = graph(table("t"), table("u"), stage("s", "t", "u"))
    assert placed["s"].phase is Phase.FINAL


def test_two_stages_of_one_table_still_are_one_table() -> None:
    placed = graph(table("t"), stage("a", "t"), stage("b", "t"), stage("c", "a", "b"))
    assert placed["c"].phase is Phase.CHUNK
    assert placed["c"].table == "t"


def test_a_combine_and_what_follows_it_are_final() -> None:
    placed = graph(table("t"), combine("c", "t"), stage("s", "c"), result("r", "s"))
    assert placed["c"].phase is Phase.FINAL
    assert placed["c"].table == "t"
    assert placed["s"].phase is Phase.FINAL
    assert placed["r"].phase is Phase.FINAL


def test_a_result_is_final_and_a_streamed_one_is_computed_per_chunk() -> None:
    placed = graph(table("t"), result("r", "t"), result("s", "t", streamed=True))
    assert placed["r"].phase is Phase.FINAL
    assert placed["s"].phase is Phase.CHUNK


def test_a_batch_writes_partials_streamed_pieces_and_what_final_nodes_take() -> None:
    found = spec(
        table("t"),
        table("u"),
        stage("clean", "t"),
        combine("c", "clean"),
        result("s", "clean", streamed=True),
        result("r", "c", "clean", "u"),
    )
    assert outputs(found) == {
        ("c", OutputKind.PARTIAL, "t"),
        ("s", OutputKind.STREAMED, "t"),
        ("clean", OutputKind.KEPT, "t"),
        ("u", OutputKind.KEPT, "u"),
    }


def test_what_only_a_combine_or_a_streamed_result_reads_is_not_kept() -> None:
    found = spec(
        table("t"),
        stage("clean", "t"),
        combine("c", "clean"),
        result("r", "c"),
        result("s", "clean", streamed=True),
    )
    assert ("clean", OutputKind.KEPT, "t") not in outputs(found)


def test_rows_are_kept_where_a_final_stage_reads_them_not_at_the_result() -> None:
    found = spec(table("t"), table("u"), stage("joined", "t", "u"), result("r", "joined"))
    assert outputs(found) == {("t", OutputKind.KEPT, "t"), ("u", OutputKind.KEPT, "u")}
    assert found.series[0].datasets == ("t", "u")


def test_what_no_result_needs_is_not_computed() -> None:
    found = spec(
        table("t"), table("w", whole=True), stage("d", "t", durable=True), combine("c", "d"),
        stage("x", "t", "w"), result("r", "t"),
    )  # fmt: skip
    assert outputs(found) == {("t", OutputKind.KEPT, "t")}
    assert found.segments[0].pins == ()
    assert [t.name for t in found.tables] == ["t", "w"]


def test_two_durable_stages_in_a_row_make_three_segments() -> None:
    found = spec(
        table("t"),
        stage("a", "t", durable=True),
        stage("light", "a"),
        stage("b", "light", durable=True),
        combine("c", "b"),
        result("r", "c"),
    )
    assert [segment.tables for segment in found.segments] == [("t",), ("a",), ("b",)]
    assert outputs(found, 1) == {("a", OutputKind.DURABLE, "t")}
    assert outputs(found, 2) == {("b", OutputKind.DURABLE, "a")}
    assert outputs(found, 3) == {("c", OutputKind.PARTIAL, "b")}
    produced = {t.name: t.segment for t in found.tables if t.produced}
    assert produced == {"a": 2, "b": 3}
    assert all(t.senders == ("",) and t.format == "parquet" for t in found.tables if t.produced)


def test_a_durable_stage_and_its_source_are_two_tables() -> None:
    """Chunks of a durable stage come apart from those of the table it was made of."""
    placed = graph(table("t"), stage("d", "t", durable=True), stage("s", "d", "t"))
    assert placed["s"].phase is Phase.FINAL


def test_pins_are_of_the_segment_whose_outputs_use_them() -> None:
    found = spec(
        table("t"),
        table("v", whole=True),
        table("w", whole=True),
        stage("d", "t", "v", durable=True),
        stage("e", "d", "w"),
        result("s", "e", streamed=True),
    )
    assert [segment.pins for segment in found.segments] == [("v",), ("w",)]


def test_a_durable_stage_keeps_its_pins_to_itself() -> None:
    """Its rows are stored, so what follows does not need the side table again."""
    placed = graph(table("t"), table("v", whole=True), stage("d", "t", "v", durable=True))
    assert placed["d"].pins == frozenset()
    assert placed["d"].segment == 2


def test_a_final_series_reads_datasets_and_pins_it_really_uses() -> None:
    found = spec(
        table("t"),
        table("w", whole=True),
        stage("small", "w"),
        combine("c", "t"),
        stage("late", "c", "small"),
        result("r", "late"),
        result("s", "t", streamed=True),
    )
    series = {one.name: one for one in found.series}
    assert (series["r"].datasets, series["r"].pins) == (("c",), ("w",))
    assert (series["s"].datasets, series["s"].pins) == (("s",), ())
    assert series["s"].streamed
    assert not series["r"].streamed


def test_a_result_over_side_tables_alone_needs_no_batch() -> None:
    found = spec(table("w", whole=True), result("r", "w"))
    assert found.segments[0].outputs == ()
    assert found.series[0].pins == ("w",)


def test_an_output_used_twice_is_written_once() -> None:
    found = spec(table("t"), combine("c", "t"), result("r", "c"), result("q", "c"))
    assert found.segments[0].outputs == (OutputSpec("c", OutputKind.PARTIAL, "t"),)


BY_CHUNK: dict[str, Callable[..., Node]] = {
    "streamed": lambda *parents: result("x", *parents, streamed=True),
    "durable": lambda *parents: stage("x", *parents, durable=True),
    "combine": lambda *parents: combine("x", *parents),
}
OVER: dict[str, tuple[Node, ...]] = {
    "whole tables": (table("w", whole=True),),
    "two tables": (table("t"), table("u"), stage("w", "t", "u")),
    "a combine": (table("t"), combine("w", "t")),
}
WORDS = {"whole tables": "only whole tables", "two tables": "", "a combine": "depends on a combine"}


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("kind", BY_CHUNK)
def test_what_works_by_chunk_is_refused_where_no_chunk_is(kind: str, over: str) -> None:
    with pytest.raises(PipelineInvalid) as caught:
        graph(*OVER[over], BY_CHUNK[kind]("w"))
    assert caught.value.code == "PIPELINE_INVALID"
    assert caught.value.pipeline == "p"
    assert " x " in caught.value.what
    assert WORDS[over] in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize("kind", ["streamed", "durable"])
def test_a_direct_join_of_two_tables_names_both(kind: str) -> None:
    with pytest.raises(PipelineInvalid) as caught:
        graph(table("t"), table("u"), BY_CHUNK[kind]("t", "u"))
    assert "t and u" in caught.value.what


def test_a_join_behind_a_stage_is_not_blamed_on_a_combine() -> None:
    """There is no combine in this pipeline: the message must not speak of one."""
    with pytest.raises(PipelineInvalid) as caught:
        graph(table("t"), table("u"), stage("w", "t", "u"), combine("x", "w"))
    assert "combine, which is complete" not in caught.value.what


def test_a_pipeline_without_a_result_is_refused() -> None:
    with pytest.raises(PipelineInvalid) as caught:
        spec(table("t"), combine("c", "t"))
    assert "no result" in caught.value.what
