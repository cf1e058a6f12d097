"""Options of single stages: whence they come, what is refused, that they change no answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.crash.workloads import SMALL
from tests.unit.plain_runs import Rows, answers_in, run_toy, stored

from holdfast import Pipeline
from holdfast.cli.settings import parse_file, resolve
from holdfast.config import Config, StageOptions
from holdfast.engine.routes import routes_of
from holdfast.errors import PipelineInvalid, StateMismatch, UsageInvalid
from holdfast.log.embedded import EmbeddedBackend
from holdfast.log.relayed import Route

KAFKA = "kafka://127.0.0.1:9092/shop"
TANSU = "tansu+sqlite:///srv/topics.db"


def shop(**of_priced: Any) -> Pipeline:
    """An expensive stage, a light one, an expensive one: durable, memory, durable."""
    pipe = Pipeline("shop", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.stage(**({"durable": True} | of_priced))
    def priced(sales: Rows) -> Rows:
        return [{**row, "price": 3 * int(row["amount"])} for row in sales]

    @pipe.stage
    def large(priced: Rows) -> Rows:
        return [row for row in priced if int(row["price"]) > 6]

    @pipe.stage(durable=True)
    def graded(large: Rows) -> Rows:
        return [{**row, "grade": int(row["price"]) % 2} for row in large]

    pipe.combine("totals", graded, by=["shop", "grade"], sum=["price"], count="n")

    @pipe.result("report", order_by=["shop", "grade"])
    def report(totals: Rows) -> Rows:
        return totals

    return pipe


def routes(stages: dict[str, StageOptions], log: str = "") -> dict[int, Route]:
    return routes_of(shop().with_stages(stages).spec(), Config(log=log, stages=stages))


def from_file(text: str) -> Config:
    return resolve(parse_file("holdfast.toml", text.encode()), {}, {}).config


def write_inputs(root: Path) -> None:
    (root / "in").mkdir(parents=True)
    rows = "".join(f"s{number % 2},{number}\n" for number in range(12))
    (root / "in" / "sales.csv").write_text("shop,amount\n" + rows)


def test_a_file_has_a_table_for_each_stage() -> None:
    text = (
        f'[stages.priced]\nlog = "{KAFKA}"\nbatch_size = 7\n\n'
        "[stages.large]\ndurable = true\nfetch_timeout_ms = 20\nport = 9092\n"
        '[stages.graded]\nlog = ""\n'
    )
    settings = resolve(parse_file("holdfast.toml", text.encode()), {}, {})
    assert settings.config.stages == {
        "priced": StageOptions(log=KAFKA, batch_size=7),
        "large": StageOptions(durable=True, fetch_timeout_ms=20, port=9092),
        "graded": StageOptions(log=""),
    }
    assert settings.origins["stages.priced.batch_size"] == "holdfast.toml:3"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[stages.x]\nbatchsize = 1", ("holdfast.toml:2", "Did you mean batch_size?")),
        ("[stages.x]\nbatch_size = 0", ("holdfast.toml:2: batch_size = 0", "from 1 to 10000")),
        ('[stages.x]\nbatch_size = "9"', ("batch_size = '9'", "whole number")),
        ("[stages.x]\nport = 70000", ("port = 70000 is out of range", "65535")),
        ("[stages.x]\nfetch_timeout_ms = 1.5", ("fetch_timeout_ms = 1.5", "whole number")),
        ('[stages.x]\ndurable = "yes"', ("durable = 'yes'", "true or false")),
        ("[stages.x]\nlog = 3", ("log = 3", "in quotes")),
        ("stages = 3", ("stages = 3 is no table", "[stages.NAME]")),
        ("[stages]\nx = 3", ("holdfast.toml:2: stages.x = 3 is no table", "[stages.NAME]")),
        ("[stage.x]\ndurable = true", ("no setting stage", "Did you mean stages?")),
    ],
)
def test_a_wrong_option_is_refused_by_file_line_and_name(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageInvalid) as raised:
        from_file(text)
    for part in parts:
        assert part in str(raised.value), str(raised.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("gradd", "Did you mean graded?"), ("zzz", "Stages: priced, large, graded"), ("sales", "Sta")],
)
def test_options_of_no_stage_are_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(PipelineInvalid) as raised:
        shop().with_stages({name: StageOptions(log=KAFKA)})
    assert f"[stages.{name}]" in raised.value.what
    assert raised.value.remedy.startswith(hint)


@pytest.mark.parametrize(
    "options",
    [
        StageOptions(log=KAFKA),
        StageOptions(log=""),
        StageOptions(batch_size=5),
        StageOptions(port=9092),
        StageOptions(log="memory://x", fetch_timeout_ms=5),
    ],
)
def test_a_light_stage_has_no_topic_to_say_something_of(options: StageOptions) -> None:
    with pytest.raises(PipelineInvalid, match="large is light"):
        shop().with_stages({"large": options})
    with pytest.raises(PipelineInvalid, match="priced is light"):
        shop(durable=False, log=KAFKA)


def test_memory_is_what_a_light_stage_has() -> None:
    made = shop().with_stages({"large": StageOptions(log="memory://x")})
    assert made.spec() == shop().spec()


def test_a_log_changes_the_way_only_and_durable_changes_the_plan() -> None:
    plain = shop().spec()
    moved = shop(log=KAFKA).with_stages({"graded": StageOptions(log=TANSU, port=9)}).spec()
    assert moved.fingerprint == plain.fingerprint
    assert [one.options.log for one in moved.segments] == [None, KAFKA, TANSU]
    heavy = shop().with_stages({"large": StageOptions(durable=True, log=KAFKA)}).spec()
    assert len(heavy.segments) == 4
    changed = {n for n, value in heavy.fingerprint.items() if plain.fingerprint[n] != value}
    assert changed == {"stage large"}
    light = shop(log=KAFKA).with_stages({"priced": StageOptions(durable=False)}).spec()
    assert len(light.segments) == 2
    assert light.fingerprint == shop(durable=False).spec().fingerprint


def test_each_segment_has_its_route_and_the_pipelines_log_is_the_default() -> None:
    assert routes({}) == {}
    assert routes({}, KAFKA) == {number: Route(KAFKA, 100, 1000) for number in (1, 2, 3)}
    assert routes({"graded": StageOptions(log="")}, KAFKA) == {1: Route(KAFKA), 2: Route(KAFKA)}
    found = routes({"priced": StageOptions(log=TANSU, port=9092, batch_size=3)})
    assert found == {2: Route(f"{TANSU}?port=9092", 3, 1000)}
    found = routes({"priced": StageOptions(log=f"{TANSU}?prefix=x", port=9092)})
    assert found == {2: Route(f"{TANSU}?prefix=x&port=9092")}


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        ({"priced": StageOptions(port=9092)}, "the store itself"),
        ({"priced": StageOptions(log=KAFKA, port=9092)}, KAFKA),
        ({"priced": StageOptions(log=f"{TANSU}?port=1", port=2)}, "and 1 in the URL"),
        (
            {"priced": StageOptions(log=TANSU, port=1), "graded": StageOptions(log=TANSU, port=2)},
            "to be started as",
        ),
    ],
)
def test_a_port_is_of_one_broker_that_we_start(stages: dict[str, StageOptions], what: str) -> None:
    with pytest.raises(UsageInvalid) as raised:
        routes(stages)
    assert what in raised.value.what


def test_two_stages_with_one_topic_go_one_way() -> None:
    """Their references lie on one topic, in the order in which they were committed."""
    pipe = Pipeline("twins", version="1")
    pipe.input("sales", schema="shop string, amount int")

    @pipe.stage(durable=True, log=KAFKA)
    def left(sales: Rows) -> Rows:
        return sales

    @pipe.stage(durable=True)
    def right(sales: Rows) -> Rows:
        return sales

    @pipe.result("both")
    def both(left: Rows, right: Rows) -> Rows:
        return [*left, *right]

    with pytest.raises(PipelineInvalid, match="left and right share a topic"):
        pipe.spec()
    same = pipe.with_stages({"right": StageOptions(log=KAFKA)}).spec()
    assert same.segments[1].options == StageOptions(log=KAFKA)


class Cut(Exception):
    pass


def test_a_stages_log_may_change_between_two_starts_and_nothing_is_lost(tmp_path: Path) -> None:
    """Stopped with references on the way between the stages, then resumed over another log."""
    write_inputs(tmp_path)
    apart = tmp_path / "apart"
    write_inputs(apart)
    run_toy(apart, pipeline=shop())
    url = (tmp_path / "elsewhere.db").as_uri()

    def cut(work: object) -> None:
        if "segment-2" in str(getattr(work, "directory", "")):
            raise Cut

    first = {"priced": StageOptions(log=url, batch_size=2)}
    config = replace(SMALL, stages=first)
    with pytest.raises(Cut):
        run_toy(tmp_path, pipeline=shop(), before=cut, config=config)
    second = {"priced": StageOptions(log="memory://other"), "graded": StageOptions(log=url)}
    config = replace(SMALL, stages=second)
    run_toy(tmp_path, pipeline=shop(), config=config)
    assert answers_in(tmp_path / "out") == answers_in(apart / "out")
    with stored(tmp_path) as (store, run):
        name = store.store_id()
    remote = EmbeddedBackend(tmp_path / "elsewhere.db")
    remote.start()
    ends = {n: remote.bounds(f"{name}/run/{run.run_id}/segment-{n}") for n in (2, 3)}
    # Those of the second segment stayed when the first process was cut off; what was read is gone.
    assert ends[2][0] == 0 < ends[2][1]
    assert ends[3][0] == ends[3][1] > 0
    with pytest.raises(UsageInvalid):
        remote.partitions(f"{name}/run/{run.run_id}/segment-1")
    remote.stop()


def test_a_stage_that_became_light_is_another_pipeline(tmp_path: Path) -> None:
    write_inputs(tmp_path)

    def cut(work: object) -> None:
        raise Cut

    with pytest.raises(Cut):
        run_toy(tmp_path, pipeline=shop(), before=cut)
    light = replace(SMALL, stages={"priced": StageOptions(durable=False)})
    with pytest.raises(StateMismatch, match="stage priced changed"):
        run_toy(tmp_path, pipeline=shop(), config=light)
