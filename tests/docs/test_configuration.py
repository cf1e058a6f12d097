"""docs/configuration.md lists every setting as the code has it.

Its tables are made from `Config` and from the choice of Spark settings. To make them again:
`python -m tests.docs.test_configuration`.
"""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from holdfast import config
from holdfast.cli.main import app
from holdfast.cli.settings import NAMES, VARIABLES, parse_file, resolve
from holdfast.cli.sizes import exact_size
from holdfast.config import (
    BATCH_SIZE,
    DEFAULT,
    FETCH_TIMEOUT_MS,
    RANGES,
    STAGE_OPTIONS,
    STAGE_RANGES,
    StageOptions,
)
from holdfast.spark.settings import Machine, choices

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def reasons(of: str = "Config") -> dict[str, str]:
    """Return the words below each field of a class of settings."""
    tree = ast.parse(inspect.getsource(config))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    (body,) = [node.body for node in classes if node.name == of]
    found = {}
    for field, words in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(words, ast.Expr):
            assert isinstance(field.target, ast.Name)
            assert isinstance(words.value, ast.Constant)
            found[field.target.id] = " ".join(str(words.value.value).split())
    return found


def flags() -> set[str]:
    """Return the names of what `holdfast run` takes."""
    (run,) = [
        c.callback for c in app.registered_commands if c.callback and c.callback.__name__ == "run"
    ]
    return set(inspect.signature(run).parameters)


def shown(name: str, value: float | str) -> str:
    """Return a value of a setting as a person would write it."""
    if isinstance(value, str):
        return value
    return exact_size(int(value)) if name.endswith("_bytes") else f"{value:,}"


def settings_table() -> str:
    variables = {name: variable for variable, name in VARIABLES.items()}
    words, known = reasons(), flags()
    rows = [
        "| setting, variable, flag | default | range | what it is, and why so |",
        "| --- | --- | --- | --- |",
    ]
    for name in NAMES:
        names = [f"`{name}`", f"`{variables[name]}`"]
        names += [f"`--{name.replace('_', '-')}`"] if name in known else []
        default, allowed = shown(name, getattr(DEFAULT, name)), RANGES.get(name)
        ends = (allowed.least, allowed.most) if allowed else ()
        span = " to ".join(shown(name, end) for end in ends) or "text"
        rows.append(f"| {'<br>'.join(names)} | `{default}` | {span} | {words[name]} |")
    rows.append(f"| `[stages.NAME]` | none | [below](#options-of-a-stage) | {words['stages']} |")
    names_of_spark = "`[spark]`<br>`HOLDFAST_SPARK_CONF`<br>`--spark-conf`"
    rows.append(f"| {names_of_spark} | none | any | {words['spark']} |")
    return "\n".join(rows) + "\n"


def stages_table() -> str:
    rows = ["| option | range | what it is, and its default |", "| --- | --- | --- |"]
    words = reasons("StageOptions")
    for name in STAGE_OPTIONS:
        allowed = STAGE_RANGES.get(name)
        span = f"{allowed.least:,} to {allowed.most:,}" if allowed else ""
        span = span or ("true or false" if name == "durable" else "text")
        rows.append(f"| `{name}` | {span} | {words[name]} |")
    return "\n".join(rows) + "\n"


def spark_table() -> str:
    rows = ["| setting | value | why |", "| --- | --- | --- |"]
    for choice in choices("local[*]", Machine(4, 8 << 30), "..."):
        rows.append(f"| `{choice.name}` | `{choice.value}` | {choice.reason} |")
    return "\n".join(rows) + "\n"


TABLES = {"settings": settings_table, "stages": stages_table, "spark": spark_table}


def with_tables(text: str) -> str:
    for name, make in TABLES.items():
        mark = f"<!-- {name}: made by python -m tests.docs.test_configuration -->\n"
        above, found, rest = text.partition(mark)
        assert found, name
        _, end, below = rest.partition("<!-- end -->")
        text = f"{above}{mark}{make()}{end}{below}"
    return text


def test_the_tables_are_those_of_the_code() -> None:
    """If this fails: `python -m tests.docs.test_configuration`."""
    text = PAGE.read_text()
    assert text == with_tables(text)


def test_every_setting_says_why() -> None:
    assert set(reasons()) == {*NAMES, "stages", "spark"}
    assert set(reasons("StageOptions")) == set(STAGE_OPTIONS)


def test_the_defaults_of_a_stage_are_told_as_the_code_has_them() -> None:
    """Their fields say None, which is "not given": the words, and backends.md, say what then."""
    words = reasons("StageOptions")
    text = (PAGE.parent / "backends.md").read_text()
    for name, value in (("batch_size", BATCH_SIZE), ("fetch_timeout_ms", FETCH_TIMEOUT_MS)):
        assert f"Default: {value}." in words[name]
        assert f"| `{name}` | {value} |" in text


def test_the_example_file_is_accepted() -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert tomllib.loads(example)
    found = resolve(parse_file("holdfast.toml", example.encode()), {}, {}).config
    assert found.batch_bytes == 256 << 20
    assert set(found.stages) == {"geocoded"}
    assert found.stages["geocoded"] == StageOptions(
        log="kafka://localhost:9092/shop", batch_size=200
    )
    assert found.spark == {"spark.sql.shuffle.partitions": "16", "spark.speculation": "false"}


@pytest.mark.parametrize("name", sorted(flags() & set(NAMES)))
def test_help_shows_the_default_of_the_code(name: str) -> None:
    command = typer.main.get_command(app)
    run = command.commands["run"]  # type: ignore[attr-defined] # a group has commands
    (option,) = [param for param in run.params if param.name == name]
    value = getattr(DEFAULT, name)
    assert option.show_default.startswith(value if isinstance(value, str) else exact_size(value))


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
