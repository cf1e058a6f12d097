"""No page shows a figure that is not in a result file."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.backends import PIECES
from bench.backends_table import BACKEND_NAMES, COLUMNS, PIECE_NAMES
from bench.report import DRAWN, NOTHING, PAGES, PICTURE, SECTIONS, digest_of, draw, filled, read_all
from bench.servers import BACKENDS
from bench.stages import SIDE_BY_SIDE, STAGES

from holdfast.cli.measure import Figure


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_results(page: Path) -> None:
    """If this fails: `python -m bench.report`."""
    text = page.read_text(encoding="ascii")
    assert filled(text, read_all()) == text


def test_the_picture_was_drawn_from_the_results() -> None:
    """If this fails: `python -m bench.report`."""
    results = read_all()
    if set(results) >= DRAWN:
        assert digest_of(results) in PICTURE.read_text(encoding="utf-8")


def test_every_section_stands_on_a_page() -> None:
    text = "".join(page.read_text(encoding="ascii") for page in PAGES)
    assert [name for name in SECTIONS if f"<!-- figures:{name} -->" not in text] == []


FACTS = {
    "machine": {
        "cpu": "a CPU",
        "cores": 2,
        "memory_gib": 8.0,
        "system": "Linux",
        "python": "3.11",
        "load_1m": 0.1,
    },
    "settings": {"size": "normal", "rounds": 5},
}


def test_figures_are_filled_in_and_filled_in_again() -> None:
    page = (
        "a\n<!-- figures:headlines -->\n\nold\n\n<!-- end -->\n<!-- figures:log -->\n<!-- end -->\n"
    )
    assert filled(page, {}).count(NOTHING) == 2
    ratio = Figure("coffee 0.1: pipeline / plain typed", "x", (1.0, 1.05, 1.1), reach=1.1)
    made = filled(page, {"coffee": (FACTS, [ratio])})
    row = "| pipeline, first chunk to last result | 1.05 x the plain batch (+- 5%)"
    assert f"{row} | <= 1.10 x the plain batch |" in made
    assert "old" not in made
    assert made.startswith("a\n")
    assert filled(made, {"coffee": (FACTS, [ratio])}) == made


def test_stages_are_one_row_a_combination() -> None:
    figures = []
    for stages in STAGES:
        for runs in SIDE_BY_SIDE:
            name = f"stages {stages} x {runs} runs"
            figures.append(Figure(f"{name}: throughput", "batches/s", (50.0,), "higher"))
            for segment in range(1, stages + 2):
                for word in ("p50", "p99"):
                    title = f"{name}: batch of segment {segment}, {word}"
                    figures.append(Figure(title, "ms", (float(segment),)))
            figures.append(Figure(f"{name}: CPU", "cores", (0.5,)))
            figures.append(Figure(f"{name}: peak memory, all processes", "MiB", (100.0,)))
    made = SECTIONS["stages"]({"stages": (FACTS, figures)})
    assert "| 2 | 4 | 50.00 | 1.00 / 2.00 / 3.00 | 1.00 / 2.00 / 3.00 | 0.50 | 100 |" in made


def test_every_backend_and_piece_has_its_place() -> None:
    assert tuple(BACKENDS) == BACKEND_NAMES
    assert tuple(PIECES) == PIECE_NAMES


def test_backends_are_one_row_a_size_and_a_table_each() -> None:
    load = "100 x 1,024 B in 10s"
    rates = [
        Figure(f"{load}: produce", "records/s", (500.0,), "higher"),
        Figure(f"{load}: produce, raw x", "records/s", (1000.0,), "higher"),
        Figure(f"{load}: produce, adapter / raw", "x", (0.5,), "higher", 0.8),
        Figure(f"{load}: peak memory, adapter", "MiB", (40.0,)),
    ]
    times = [Figure("end to end, p50", "ms", (2.0,)), Figure("end to end, p50, raw", "ms", (1.0,))]
    about = {"piece": "1024", "durability": "nothing", "records": 100, "of": 1000, "rounds": 1}
    facts = {**FACTS, "settings": about}
    results = {"backends/kafka-1024": (facts, rates), "backends/kafka-latency": (facts, times)}
    (row,) = [line for line in SECTIONS["backends"](results).splitlines() if "kafka" in line]
    assert row == f"| kafka | {load} | 500 | 0.50 |  |  | 40.00 | 2.00 |  |  |"
    assert row.count("|") == len(COLUMNS) + 1
    made = SECTIONS["backends_kafka"](results)
    assert "MISSED" in made
    assert "10% of the records" in made
    assert "Not measured yet" in SECTIONS["backends_memory"](results)


def test_the_picture_carries_the_digest_of_its_results(tmp_path: Path) -> None:
    race = [
        Figure("coffee 0.1: pipeline", "s", (1.0, 2.0)),
        Figure("coffee 0.1: DuckDB", "s", (1.0,)),
    ]
    grown = [
        Figure(f"{name}: {count:,}", "s", (count / 10,))
        for name in ("chunks, engine alone", "batches, engine alone", "chunks, Spark")
        for count in (1, 1000)
    ]
    results = {"coffee": (FACTS, race), "chunks": (FACTS, grown)}
    draw(results, tmp_path / "one.svg")
    draw(results, tmp_path / "two.svg")
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert digest_of(results) in text
    assert text == (tmp_path / "two.svg").read_text(encoding="utf-8")
