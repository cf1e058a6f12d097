"""The documents tell the truth: links lead somewhere, every crash point, error and verb is there.

docs/errors.md and docs/internals/crash-points.md are made from the code. To make them again:
`python -m tests.docs.test_docs`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from holdfast._base.crashpoint import POINTS
from holdfast.cli.main import app
from holdfast.errors import HoldfastError, all_errors

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ERRORS = DOCS / "errors.md"
CRASH_POINTS = DOCS / "internals" / "crash-points.md"

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_TEST = re.compile(r"(\btests/[\w./-]*[\w/]|`)((?:::\w+){0,2})")
"""A file and a test in it, or in backquotes only a test, of the file that was named last."""
_CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def others() -> list[Path]:
    return [path for path in ROOT.glob("*.md") if path.name != "README.md"]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", _CODE_BLOCK.sub("", text_of(path)), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


def has_anchor(path: Path, anchor: str) -> bool:
    return not anchor or path.suffix != ".md" or anchor in anchors_of(path)


def links_of(path: Path) -> Iterator[str]:
    for target in _LINK.findall(_CODE_BLOCK.sub("", text_of(path))):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("path", [*pages(), *others()], ids=name_of)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    broken = []
    for link in links_of(path):
        place, _, anchor = link.partition("#")
        target = (path.parent / place).resolve() if place else path
        if not target.exists() or not has_anchor(target, anchor):
            broken.append(link)
    assert broken == []


@cache
def names_in(path: Path) -> frozenset[str]:
    tree = ast.parse(text_of(path))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_test_that_is_named_exists() -> None:
    """A promise that names the test which pins it must name one that is there."""
    missing = []
    for path in [*pages(), *others()]:
        place = ""
        for named, test in _TEST.findall(text_of(path)):
            place = place if named == "`" else named.rstrip(".")
            names = test.split("::")[1:]
            there = (ROOT / place).exists()
            if not there or any(name not in names_in(ROOT / place) for name in names):
                missing.append(f"{name_of(path)}: {place}{test}")
    assert missing == []


def test_every_case_of_bad_input_is_on_its_page() -> None:
    page = text_of(DOCS / "internals" / "bad-input.md")
    for place in ("tests/unit/test_bad_input.py", "tests/spark/test_bad_input.py"):
        tests = {name for name in names_in(ROOT / place) if name.startswith("test_")}
        assert tests == {name for name in tests if f"{place}::{name}`" in page}


def test_every_source_file_that_is_named_exists() -> None:
    named = re.compile(r"\bsrc/holdfast/[\w./-]*\w")
    missing = [
        f"{name_of(path)}: {place}"
        for path in pages()
        for place in named.findall(text_of(path))
        if not (ROOT / place).exists()
    ]
    assert missing == []


PLANNED = {"docs/internals/ledger.md", "docs/paid-calls.md"}
"""Pages of the paid-call ledger, whose code is there before it: written when its issue is done."""


def test_every_page_that_a_source_file_names_exists() -> None:
    named = re.compile(r"\bdocs/[\w./-]+\.md")
    missing = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for page in named.findall(text_of(path))
        if not (ROOT / page).exists() and page not in PLANNED
    ]
    assert missing == []


def verbs() -> list[str]:
    """Return every command of `holdfast`, those of its groups with their group's name."""

    def walk(group: typer.Typer, above: str) -> Iterator[str]:
        for command in group.registered_commands:
            name = command.name or (command.callback.__name__ if command.callback else "")
            yield f"{above}{name}"
        for inner in group.registered_groups:
            if inner.typer_instance is not None:
                yield from walk(inner.typer_instance, f"{above}{inner.name} ")

    return sorted(walk(app, ""))


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_is_shown(verb: str) -> None:
    assert any(f"holdfast {verb}" in text_of(path) for path in pages())


def crash_points_page() -> str:
    """Return the page of crash points, made from the registry."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in POINTS.items()]
    return (
        "# Crash points\n\n"
        "Every boundary between two effects has a name. `crashpoint(name)` does nothing in"
        " production; a crash\ntest arms one, and the process ends itself there with SIGKILL: no"
        " handler, no flush, no clean-up.\nThe registry is `POINTS` in"
        " `holdfast._base.crashpoint`; this page is made from it by\n"
        "`python -m tests.docs.test_docs`.\n\n"
        "Any command of Holdfast dies at the n-th pass of a point with"
        " `HOLDFAST_CRASH=<name>:<n>`, and lists\nthe points it passes in a file with"
        " `HOLDFAST_CRASH_RECORD=<file>`:\n\n"
        "```\nHOLDFAST_CRASH=engine.commit.after:2 holdfast run coffee --input data --out answers"
        " --state state\n```\n\n"
        "Names are `area.step.moment`. Each is used in one place and tried by the crash loop"
        " (`make crash`).\n\n"
        "| crash point | what a crash there leaves behind |\n| --- | --- |\n"
        + "\n".join(rows)
        + "\n"
    )


def _acts(cls: type[HoldfastError]) -> str:
    return {
        "caller": "whoever called",
        "environment": "whoever runs the machine",
        "data": "whoever owns the data",
        "holdfast": "Holdfast's developers",
    }[cls.blame]


def errors_page() -> str:
    """Return the page of errors, made from the classes' own docstrings."""
    rows = []
    for code, cls in sorted(all_errors().items()):
        words = " ".join(inspect.cleandoc(cls.__doc__ or "").split()).replace("|", "\\|")
        again = "yes" if cls.retryable else "no"
        rows.append(f"| `{code}` | {_acts(cls)} | {again} | {words} |")
    return (
        "# Errors\n\n"
        "Every error that Holdfast raises on purpose has a code that does not change, and says what"
        " happened,\nwhere, and what to do. On the command line it is one line, `holdfast: [CODE]"
        " ...`, and an exit code:\n2 for `USAGE_INVALID` and `PIPELINE_INVALID`, 75 for"
        " `DISK_FULL`, 1 for all others.\nIn Python it is a class of `holdfast.errors` with typed"
        " attributes; catch `HoldfastError`.\n\n"
        "This page is made from `src/holdfast/errors/` by `python -m tests.docs.test_docs`.\n\n"
        "| code | who acts | may the same succeed later | cause and remedy |\n"
        "| --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


MADE = {CRASH_POINTS: crash_points_page, ERRORS: errors_page}


@pytest.mark.parametrize("path", MADE, ids=name_of)
def test_pages_made_from_code_are_up_to_date(path: Path) -> None:
    """If this fails: `python -m tests.docs.test_docs`."""
    assert text_of(path) == MADE[path]()


def test_the_crash_points_of_the_page_are_those_of_the_registry() -> None:
    rows = re.findall(r"^\| `([a-z.]+)` \| (.+) \|$", text_of(CRASH_POINTS), re.MULTILINE)
    assert dict(rows) == POINTS
    assert len(rows) == len(POINTS)


def test_the_errors_of_the_page_are_those_of_the_code() -> None:
    codes = re.findall(r"^\| `([A-Z_]+)` \|", text_of(ERRORS), re.MULTILINE)
    assert codes == sorted(all_errors())


def test_every_code_that_a_page_names_exists() -> None:
    """Where a page writes a code in capitals with an underscore, it is a real one."""
    known = {*all_errors(), "HOLDFAST_CRASH", "HOLDFAST_CRASH_RECORD"}
    ends = tuple(code.rsplit("_", 1)[1] for code in all_errors() if "_" in code)
    wrong = [
        f"{name_of(path)}: {word}"
        for path in pages()
        for word in re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", text_of(path))
        if word.endswith(ends) and word not in known
    ]
    assert wrong == []


if __name__ == "__main__":
    for page, make in MADE.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(make(), encoding="ascii")
