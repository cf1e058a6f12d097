"""Makes the figures of docs/performance.md and README.md from `bench/results/`, and the picture.

    .venv/bin/python -m bench.report

What stands between `<!-- figures:NAME -->` and `<!-- end -->` is written here and nowhere else; a
test compares it with the result files, so no page can show a figure that nobody measured.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.backends_table import BACKEND_NAMES, backend_section, summary
from bench.harness import RESULTS, read_result
from bench.stages import SIDE_BY_SIDE, STAGES
from holdfast.cli.measure import Figure, show, table

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "paid-calls.md",
    ROOT / "docs" / "backends.md",
    ROOT / "README.md",
)
PICTURE = ROOT / "docs" / "performance.svg"
DRAWN = {"coffee", "chunks"}
"""The result files that the picture shows."""
NOTHING = "Not measured yet: `make bench`.\n"
HEADLINES = (
    ("coffee 0.1: pipeline / plain typed", "pipeline, first chunk to last result"),
    ("coffee 0.1: last END to last result / plain typed", "last END to last result"),
    ("log 1,000,000: embedded, produce", "embedded log, durable, produce"),
    ("resume after SIGKILL, 1,000,000 records", "resume after SIGKILL, a million log records"),
)
"""The four figures that matter, by name, and what the README calls them."""

Results = Mapping[str, tuple[dict[str, Any], list[Figure]]]


def read_all(directory: Path = RESULTS) -> Results:
    """Return every result file of a directory, by name; those of backends as `backends/NAME`."""
    found = {path.stem: path for path in sorted(directory.glob("*.json"))}
    found |= {f"backends/{path.stem}": path for path in sorted(directory.glob("backends/*.json"))}
    return {name: read_result(path) for name, path in found.items()}


def headlines(results: Results) -> str:
    """Return the README's rows."""
    named = {one.name: one for _, figures in results.values() for one in figures}
    found = [(named[name], title) for name, title in HEADLINES if name in named]
    if not found:
        return NOTHING
    rows = [f"| {title} | {_against(one)} | {_wanted(one)} |" for one, title in found]
    return "\n".join(["| what | measured | to reach |", "| --- | --- | --- |", *rows]) + "\n"


def _against(one: Figure) -> str:
    return f"{show(one.median)} {_unit(one)} (+- {one.spread / 2:.0%})"


def _wanted(one: Figure) -> str:
    if one.reach is None:
        return ""
    return f"{'<=' if one.better == 'lower' else '>='} {show(one.reach)} {_unit(one)}"


def _unit(one: Figure) -> str:
    return "x the plain batch" if "plain typed" in one.name else one.unit


def section(name: str) -> Callable[[Results], str]:
    """Return what makes the table of one result file."""

    def make(results: Results) -> str:
        if name not in results:
            return NOTHING
        facts, figures = results[name]
        lines = stage_table(figures) if name == "stages" else table(figures)
        return _measured_on(facts) + "\n\n" + "\n".join(lines) + "\n"

    return make


def _measured_on(facts: Mapping[str, Any]) -> str:
    machine, settings = facts["machine"], facts["settings"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB,"
        f" {machine['system']}, Python {machine['python']}; load before {machine['load_1m']};"
        f" {settings['rounds']} rounds."
    )


def stage_table(figures: Sequence[Figure]) -> list[str]:
    """Return one row per combination: all segments of a run in one cell."""
    named = {one.name: one for one in figures}
    lines = [
        "| durable stages | runs side by side | batches/s | p50 by segment, ms |"
        " p99 by segment, ms | CPU, cores | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for stages in STAGES:
        for runs in SIDE_BY_SIDE:
            name = f"stages {stages} x {runs} runs"
            cells = [str(stages), str(runs), show(named[f"{name}: throughput"].median)]
            for word in ("p50", "p99"):
                segments = [
                    show(one.median)
                    for one in figures
                    if one.name.startswith(f"{name}: batch") and one.name.endswith(word)
                ]
                cells.append(" / ".join(segments))
            cells.append(show(named[f"{name}: CPU"].median))
            cells.append(show(named[f"{name}: peak memory, all processes"].median))
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", *table([one for one in figures if one.name.startswith("stages:")])]


def picture(results: Results) -> str:
    """Return the line that shows the picture, where there is one."""
    if not set(results) >= DRAWN:
        return NOTHING
    return f"![Seconds of each side; seconds of a run by number of chunks]({PICTURE.name})\n"


SECTIONS: dict[str, Callable[[Results], str]] = {
    "headlines": headlines,
    "picture": picture,
    **{
        name: section(name)
        for name in (
            "coffee",
            "coffee_large",
            "log",
            "resume",
            "chunks",
            "stages",
            "ledger",
            "start",
            "worker_journal",
            "service",
            "gateway",
        )
    },
    "backends": summary,
    **{f"backends_{name.replace('-', '_')}": backend_section(name) for name in BACKEND_NAMES},
}
_MARKED = re.compile(r"(<!-- figures:(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, results: Results) -> str:
    """Return a page with all its figures as the results have them."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{SECTIONS[found[2]](results)}\n{found[3]}", text)


def digest_of(results: Results) -> str:
    """Return what the picture carries to show which results it was made from."""
    text = repr([[one.as_json() for one in figures] for _, figures in results.values()])
    return hashlib.sha256(text.encode()).hexdigest()


def draw(results: Results, path: Path) -> None:
    """Draw the race at scale 0.1 and how a run's time grows with its chunks."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Sheet

    mpl.rcParams["svg.hashsalt"] = "holdfast"
    sheet = Sheet(figsize=(10, 3.6), layout="constrained")
    left, right = sheet.subplots(1, 2)
    race = [one for one in results["coffee"][1] if re.fullmatch(r"coffee 0.1: [^/,]+", one.name)]
    race.sort(key=lambda one: one.median, reverse=True)
    names = [one.name.removeprefix("coffee 0.1: ") for one in race]
    medians = [one.median for one in race]
    below = [one.median - min(one.values) for one in race]
    above = [max(one.values) - one.median for one in race]
    left.barh(names, medians, xerr=[below, above], color="#4a6fa5", ecolor="#222222")
    left.set_xlabel("seconds (bars: median, lines: all rounds)")
    left.set_title("coffee, scale 0.1: five answers from CSV", fontsize=10)
    for name in ("chunks, engine alone", "batches, engine alone", "chunks, Spark"):
        points = [
            (int(one.name.rpartition(" ")[2].replace(",", "")), one.median)
            for one in results["chunks"][1]
            if re.fullmatch(re.escape(name) + r": [\d,]+", one.name)
        ]
        right.plot(*zip(*points, strict=True), marker="o", label=name)
    right.set(xscale="log", yscale="log", xlabel="chunks (or batches)", ylabel="seconds")
    right.set_title("one run, from nothing to DONE", fontsize=10)
    right.legend(fontsize=8)
    sheet.savefig(path, metadata={"Date": None, "Description": digest_of(results)})


def main() -> None:
    """Write all pages and the picture."""
    results = read_all()
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="ascii"), results), encoding="ascii")
    if set(results) >= DRAWN:
        draw(results, PICTURE)


if __name__ == "__main__":
    main()
