"""What is checked when a pipeline is defined, and what its fingerprint notices."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Pipeline
from holdfast._base.ids import digest
from holdfast.engine.belonging import changes
from holdfast.errors import PipelineInvalid
from holdfast.pipeline import Input

_NUMBERS = itertools.count()


def pipeline(**options: Any) -> Pipeline:
    pipe = Pipeline("p", **options)
    pipe.input("sales", schema="shop string, amount int")
    return pipe


def same(sales: Any) -> Any:
    return sales


def other(sales: Any) -> Any:
    return sales


def refused(call: Callable[[], object]) -> PipelineInvalid:
    with pytest.raises(PipelineInvalid) as caught:
        call()
    assert caught.value.code == "PIPELINE_INVALID"
    assert caught.value.remedy
    return caught.value


def test_an_unknown_parameter_is_refused_and_the_nearest_name_offered() -> None:
    pipe = pipeline()

    def clean(sale: Any) -> Any:
        return sale

    error = refused(lambda: pipe.stage(clean))
    assert error.pipeline == "p"
    assert "clean wants sale" in error.what
    assert "sales" in error.remedy


def test_an_unknown_parameter_with_no_near_name_lists_what_is_known() -> None:
    pipe = pipeline()

    def clean(zzz: Any) -> Any:
        return zzz

    assert "Known: sales" in refused(lambda: pipe.stage(clean)).remedy


def test_a_stage_that_names_itself_is_a_cycle() -> None:
    pipe = pipeline()

    def loop(loop: Any) -> Any:
        return loop

    assert "cycle" in refused(lambda: pipe.stage(loop)).what
    assert "cycle" in refused(lambda: pipe.combine("c", "c", by=["shop"], count="n")).what


def test_a_function_without_parameters_is_refused() -> None:
    assert "no parameters" in refused(lambda: pipeline().result("r")(lambda: None)).what


def test_names_are_used_once_across_inputs_stages_combines_and_results() -> None:
    pipe = pipeline()
    pipe.stage(same)
    pipe.combine("totals", "sales", by=["shop"], count="n")
    pipe.result("answer")(other)
    for name in ("sales", "same", "totals", "answer"):
        for define in (
            lambda name=name: pipe.input(name, schema="a int"),
            lambda name=name: pipe.combine(name, "sales", by=["shop"], count="n"),
            lambda name=name: pipe.result(name)(lambda same: same),
        ):
            assert name in refused(define).what


@pytest.mark.parametrize(
    "name", ["", "1st", "a-b", "a b", "a.b", "../x", "_x", "class", "x" * 64, "n\u00e4", "a\n"]
)
def test_names_that_cannot_be_a_parameter_or_a_directory_are_refused(name: str) -> None:
    assert refused(lambda: pipeline().input(name, schema="a int")).pipeline == "p"
    assert refused(lambda: Pipeline(name)).pipeline == name


def test_a_result_leads_nowhere() -> None:
    pipe = pipeline()
    pipe.result("answer")(same)

    def after(answer: Any) -> Any:
        return answer

    assert "answer" in refused(lambda: pipe.stage(after)).what


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partial": same},
        {"merge": same},
        {"sum": ["amount"]},
        {"by": ["shop"], "count": "n", "partial": same, "merge": same},
        {"by": ["shop"]},
        {"by": ["shop"], "sum": ["shop"]},
        {"by": ["shop"], "sum": ["amount", "amount"]},
        {"by": ["shop"], "sum": ["amount"], "max": ["amount"]},
        {"by": ["shop"], "sum": ["amount"], "count": "amount"},
    ],
    ids=lambda options: "+".join(options) or "nothing",
)
def test_a_combine_says_exactly_one_thing(options: dict[str, Any]) -> None:
    assert "combine c" in refused(lambda: pipeline().combine("c", "sales", **options)).what


@pytest.mark.parametrize("half", ["partial", "merge"])
def test_a_combine_with_by_and_half_of_the_functions_is_refused(half: str) -> None:
    """Otherwise the function would silently never be called."""
    options: dict[str, Any] = {"by": ["shop"], "count": "n", half: same}
    assert "combine c" in refused(lambda: pipeline().combine("c", "sales", **options)).what


def test_a_combine_of_functions_refuses_columns_it_would_ignore() -> None:
    options: dict[str, Any] = {"partial": same, "merge": same, "sum": ["amount"]}
    assert "combine c" in refused(lambda: pipeline().combine("c", "sales", **options)).what


def test_a_combine_over_an_unknown_source_is_refused() -> None:
    error = refused(lambda: pipeline().combine("c", "sale", by=["shop"], count="n"))
    assert "sales" in error.remedy


@pytest.mark.parametrize(
    "define",
    [
        lambda p: p.combine("c", "sales", by="shop", count="n"),
        lambda p: p.combine("c", "sales", by=["shop"], sum="amount"),
        lambda p: p.result("r", order_by="shop")(same),
        lambda p: p.input("i", schema="a int", senders="ab"),
    ],
    ids=["by", "sum", "order_by", "senders"],
)
def test_one_word_where_a_list_is_wanted_is_not_taken_letter_by_letter(
    define: Callable[[Pipeline], object],
) -> None:
    refused(lambda: define(pipeline()))


@pytest.mark.parametrize(
    "options",
    [
        {"format": "xml", "schema": "a int"},
        {"format": "CSV", "schema": "a int"},
        {"format": "csv"},
        {"format": "json", "schema": "  "},
        {"schema": "a int", "on_bad_rows": "ignore"},
        {"schema": "a int", "senders": []},
        {"schema": "a int", "senders": ["x", "x"]},
    ],
    ids=str,
)
def test_an_input_is_refused_for_its_format_schema_policy_or_senders(
    options: dict[str, Any],
) -> None:
    assert "input i" in refused(lambda: pipeline().input("i", **options)).what


@pytest.mark.parametrize("schema", ["just_a_name", "a int,", "a int, b"])
def test_a_schema_that_is_not_name_and_type_is_refused_at_its_definition(schema: str) -> None:
    """A mistake is shown at the user's own line, not when the files are bound."""
    refused(lambda: pipeline().input("i", schema=schema))


def test_formats_that_carry_their_schema_need_none() -> None:
    pipe = Pipeline("p")
    assert pipe.input("a", format="parquet") == Input("a")
    assert pipe.input("b", format="binaryFile") == Input("b")


def test_decorators_return_the_function_itself() -> None:
    """So that it can be called and tested as what it is."""
    pipe = pipeline()
    assert pipe.stage(same) is same
    assert pipe.stage(durable=True)(other) is other

    def answer(same: Any) -> Any:
        return same

    assert pipe.result("r")(answer) is answer


def test_a_result_of_a_missing_input_is_refused() -> None:
    pipe = Pipeline("p")
    assert "sales" in refused(lambda: pipe.result("r")(same)).what


def fingerprint(define: Callable[[Pipeline], object], **options: Any) -> dict[str, str]:
    pipe = Pipeline("p", **options)
    pipe.input("sales", schema="shop string, amount int")
    define(pipe)
    if "r" not in pipe.placed():
        pipe.result("r", version="1")(lambda sales: sales)
    return pipe.spec().fingerprint


PAIRS: dict[str, tuple[Callable[[Pipeline], object], Callable[[Pipeline], object], str]] = {
    "schema": (
        lambda p: p.input("i", schema="a int"),
        lambda p: p.input("i", schema="a bigint"),
        "input i changed",
    ),
    "format": (
        lambda p: p.input("i", schema="a int", format="csv"),
        lambda p: p.input("i", schema="a int", format="json"),
        "input i changed",
    ),
    "whole": (
        lambda p: p.input("i", schema="a int"),
        lambda p: p.input("i", schema="a int", whole=True),
        "input i changed",
    ),
    "on_bad_rows": (
        lambda p: p.input("i", schema="a int"),
        lambda p: p.input("i", schema="a int", on_bad_rows="quarantine"),
        "input i changed",
    ),
    "senders": (
        lambda p: p.input("i", schema="a int"),
        lambda p: p.input("i", schema="a int", senders=["", "b"]),
        "input i changed",
    ),
    "durable": (
        lambda p: p.stage(version="1")(same),
        lambda p: p.stage(durable=True, version="1")(same),
        "stage same changed",
    ),
    "stage version": (
        lambda p: p.stage(version="1")(same),
        lambda p: p.stage(version="2")(same),
        "stage same changed",
    ),
    "order_by": (
        lambda p: p.result("r", version="1", order_by=["shop"])(same),
        lambda p: p.result("r", version="1", order_by=["amount"])(same),
        "result r changed",
    ),
    "streamed": (
        lambda p: p.result("r", version="1")(same),
        lambda p: p.result("r", version="1", streamed=True)(same),
        "result r changed",
    ),
    "the format of a result": (
        lambda p: p.result("r", version="1")(same),
        lambda p: p.result("r", version="1", format="parquet")(same),
        "result r changed",
    ),
    "aggregates": (
        lambda p: p.combine("c", "sales", by=["shop"], sum=["amount"]),
        lambda p: p.combine("c", "sales", by=["shop"], max=["amount"]),
        "combine c changed",
    ),
    "partial and merge": (
        lambda p: p.combine("c", "sales", partial=same, merge=same, version="1"),
        lambda p: p.combine("c", "sales", partial=same, merge=same, version="2"),
        "combine c.partial changed, combine c.merge changed",
    ),
    "a new node": (
        lambda p: None,
        lambda p: p.input("i", schema="a int"),
        "input i was added",
    ),
    "a lost node": (
        lambda p: p.input("i", schema="a int"),
        lambda p: None,
        "input i was removed",
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_the_fingerprint_names_what_changed(what: str) -> None:
    before, after, wanted = PAIRS[what]
    assert changes(fingerprint(before), fingerprint(before)) == ""
    assert changes(fingerprint(before), fingerprint(after)) == wanted


def test_a_result_has_one_of_two_formats_and_csv_is_no_change() -> None:
    """A run that began before results had a format goes on."""
    plain = fingerprint(lambda p: p.result("r", version="1", order_by=["shop"])(same))
    csv = fingerprint(lambda p: p.result("r", version="1", order_by=["shop"], format="csv")(same))
    assert changes(plain, csv) == ""
    assert plain["result r"] == digest("False", "shop", "from", "sales", "1")
    error = refused(lambda: pipeline().result("r", format="json")(same))
    assert "result r" in error.what
    assert "parquet" in error.remedy


def test_spaces_in_a_schema_are_no_change() -> None:
    one = fingerprint(lambda p: p.input("i", schema="a int,  b   string"))
    two = fingerprint(lambda p: p.input("i", schema=" a int, b string\n"))
    assert changes(one, two) == ""


def test_what_a_stage_or_combine_reads_is_part_of_it() -> None:
    def two_inputs(pipe: Pipeline, parent: str) -> None:
        pipe.input("i", schema="shop string, amount int")
        pipe.combine("c", parent, by=["shop"], count="n")

    one = fingerprint(lambda p: two_inputs(p, "sales"))
    assert changes(one, fingerprint(lambda p: two_inputs(p, "i"))) == "combine c changed"


def module(path: Path, text: str) -> Any:
    """Write a module file and import it anew, under a name of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = importlib.util.spec_from_file_location(f"stages_{next(_NUMBERS)}", path)
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


STAGES = "def same(sales):\n    return sales\n"
EDITED = "def same(sales):\n    return sales.limit(1)\n"


def test_an_edited_source_file_changes_the_fingerprint_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "stages.py"
    before = fingerprint(lambda p: p.stage(module(path, STAGES).same))
    again = fingerprint(lambda p: p.stage(module(path, STAGES).same))
    after = fingerprint(lambda p: p.stage(module(path, EDITED).same))
    assert changes(before, again) == ""
    assert changes(before, after) == "source of stages.py changed"


def test_a_version_stands_for_the_source(tmp_path: Path) -> None:
    """With `version=` the file may be edited; the version of the pipeline does the same."""
    path = tmp_path / "stages.py"
    one = fingerprint(lambda p: p.stage(version="7")(module(path, STAGES).same))
    two = fingerprint(lambda p: p.stage(version="7")(module(path, EDITED).same))
    three = fingerprint(lambda p: p.stage(version="8")(module(path, EDITED).same))
    assert changes(one, two) == ""
    assert changes(one, three) == "stage same changed"

    def versioned(text: str, version: str) -> dict[str, str]:
        return fingerprint(lambda p: p.stage(module(path, text).same), version=version)

    of_pipe = [versioned(STAGES, "1"), versioned(EDITED, "1"), versioned(EDITED, "2")]
    assert changes(of_pipe[0], of_pipe[1]) == ""
    assert changes(of_pipe[0], of_pipe[2]) == "stage same changed"


def test_two_files_of_one_name_are_both_noticed(tmp_path: Path) -> None:
    """Editing either of a/stages.py and b/stages.py is a change, whichever was defined last."""

    def both(pipe: Pipeline, first: str) -> None:
        pipe.stage(module(tmp_path / "a" / "stages.py", first).same)
        pipe.result("r")(module(tmp_path / "b" / "stages.py", STAGES).same)

    before = fingerprint(lambda p: both(p, STAGES))
    after = fingerprint(lambda p: both(p, EDITED))
    assert changes(before, after) != ""


def made_by_exec(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(text, names)
    function: Callable[..., Any] = names["same"]
    return function


def test_a_function_without_a_file_has_a_fingerprint_too() -> None:
    before = fingerprint(lambda p: p.stage(made_by_exec(STAGES)))
    again = fingerprint(lambda p: p.stage(made_by_exec(STAGES)))
    after = fingerprint(lambda p: p.stage(made_by_exec("def same(sales):\n    return [sales]\n")))
    assert changes(before, again) == ""
    assert changes(before, after) == "source of same changed"


def test_a_function_without_a_file_that_calls_another_method_has_changed() -> None:
    """The byte code of both is the same; only the names it uses differ."""
    one = fingerprint(lambda p: p.stage(made_by_exec("def same(sales):\n    return sales.a()\n")))
    two = fingerprint(lambda p: p.stage(made_by_exec("def same(sales):\n    return sales.b()\n")))
    assert changes(one, two) != ""


def test_a_function_without_a_file_is_the_same_in_the_next_process() -> None:
    """An inner function must not bring a memory address into the fingerprint: no resume then."""
    text = "def same(sales):\n    return (lambda rows: rows)(sales)\n"
    one, two = made_by_exec(text), made_by_exec(text)
    assert changes(fingerprint(lambda p: p.stage(one)), fingerprint(lambda p: p.stage(two))) == ""


def test_two_functions_without_a_file_and_of_one_name_are_both_noticed() -> None:
    """A combine's partial= and merge= typed as lambdas in a shell are both called <lambda>."""

    def both(pipe: Pipeline, number: int) -> None:
        names: dict[str, Any] = {}
        exec(f"partial = lambda rows: [rows, {number}]\nmerge = lambda rows: rows", names)
        pipe.combine("c", "sales", partial=names["partial"], merge=names["merge"])

    assert changes(fingerprint(lambda p: both(p, 1)), fingerprint(lambda p: both(p, 2))) != ""
