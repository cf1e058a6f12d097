"""Where settings come from: flags beat the environment, that beats `holdfast.toml`, that defaults.

`resolve` decides and touches nothing; `load_settings` reads file and environment for it. Every
value remembers where it came from, so that `holdfast doctor` can say so.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from holdfast._base.files import os_errors
from holdfast.cli.sizes import parse_size
from holdfast.config import (
    RANGES,
    STAGE_OPTIONS,
    STAGE_RANGES,
    Config,
    Range,
    StageOptions,
    remedy_of,
)
from holdfast.errors import UsageInvalid

FILE_NAME = "holdfast.toml"
VARIABLE_PREFIX = "HOLDFAST_"
SPARK_VARIABLE = "HOLDFAST_SPARK_CONF"
SPARK_FLAG = "--spark-conf"
DEFAULT_ORIGIN = "default"

TABLES = ("stages", "spark")
"""The settings that are tables: a table for each stage, and Spark's own settings."""
NAMES = tuple(setting.name for setting in fields(Config) if setting.name not in TABLES)
"""The settings that are one value."""
TEXTS = ("log", "master")
VARIABLES = {VARIABLE_PREFIX + name.upper(): name for name in NAMES}

_NEAR = 0.8
"""How alike a variable must be to a setting's to be called misspelt. Other variables begin with
the same word: a lower one would refuse those, a higher one would pass over a missing letter."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file: its values, and the line of each dotted name."""

    name: str
    values: Mapping[str, Any]
    lines: Mapping[str, int]

    def place(self, path: str) -> str:
        """Return file and line of a dotted name, as editors take it."""
        line = self.lines.get(path)
        return self.name if line is None else f"{self.name}:{line}"


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given, where, and the words to quote when it is refused.

    `typed`: a file tells numbers from text; in the environment and in flags all is text.
    """

    value: Any
    origin: str
    quote: str = ""
    typed: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to be used, and where each value came from: settings and Spark's by name."""

    config: Config
    origins: Mapping[str, str]


def load_settings(
    config_file: Path | None,
    flags: Mapping[str, str | None],
    spark_flags: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings of this command line, in this environment and working directory.

    Raises:
        UsageInvalid: a value or a name is wrong; the message says which, where and what to do.
    """
    path = config_file or Path(FILE_NAME)
    found = None
    if config_file is not None or path.exists():
        if not path.exists():
            raise UsageInvalid(what=f"there is no file {path}", remedy="Correct --config.")
        with os_errors(path):
            found = parse_file(str(path), path.read_bytes())
    return resolve(found, environ, flags, spark_flags)


def parse_file(name: str, data: bytes) -> ConfigFile:
    """Return what a configuration file says."""
    try:
        text = data.decode()
        return ConfigFile(name, tomllib.loads(text), _lines(text))
    except UnicodeDecodeError as error:
        what = f"{name}: byte {error.start} is not UTF-8"
        raise UsageInvalid(what=what, remedy="Write the file in UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise UsageInvalid(what=f"{name}: {error}", remedy="Correct the file.") from error


def resolve(
    file: ConfigFile | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str | None],
    spark_flags: Sequence[str] = (),
) -> Settings:
    """Return the settings, each from the strongest place that has it. Everything is checked."""
    values: dict[str, Any] = {}
    spark: dict[str, str] = {}
    origins = dict.fromkeys(NAMES, DEFAULT_ORIGIN)
    ours = [_of_file(file), _of_environment(environ), _of_flags(flags)]
    for layer in ours:
        for name, given in layer.items():
            values[name], origins[name] = _converted(name, given), given.origin
    theirs = [
        _spark_of_file(file),
        _pairs(SPARK_VARIABLE, _words(environ.get(SPARK_VARIABLE, ""))),
        _pairs(SPARK_FLAG, spark_flags),
    ]
    for layer in theirs:
        for name, given in layer.items():
            spark[name], origins[name] = given.value, given.origin
    stages, places = _stages_of_file(file)
    return Settings(Config(**values, stages=stages, spark=spark), origins | places)


def _of_file(file: ConfigFile | None) -> dict[str, Given]:
    given: dict[str, Given] = {}
    if file is None:
        return given
    for name, value in file.values.items():
        if name in TABLES:
            continue
        place = file.place(name)
        if name not in NAMES:
            what = f"{place}: there is no setting {name}"
            raise UsageInvalid(what=what, remedy=_nearest(name, (*NAMES, *TABLES)))
        given[name] = Given(value, place, f"{place}: {name} = {value!r}", typed=True)
    return given


def _of_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    given = {}
    for variable in sorted(name for name in environ if name.startswith(VARIABLE_PREFIX)):
        value = environ[variable]
        if variable in VARIABLES:
            if value:
                given[VARIABLES[variable]] = Given(value, variable, f"{variable}={value}")
        elif variable != SPARK_VARIABLE:
            _refuse_misspelt(variable)
    return given


def _of_flags(flags: Mapping[str, str | None]) -> dict[str, Given]:
    given = {}
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        if value is not None:
            given[name] = Given(value, flag, f"{flag} {value}")
    return given


def _refuse_misspelt(variable: str) -> None:
    ends = {name.removeprefix(VARIABLE_PREFIX): name for name in (*VARIABLES, SPARK_VARIABLE)}
    end = variable.removeprefix(VARIABLE_PREFIX)
    if near := difflib.get_close_matches(end, ends, n=1, cutoff=_NEAR):
        what = f"the environment sets {variable}, which is no setting"
        raise UsageInvalid(what=what, remedy=f"Did you mean {ends[near[0]]}?")


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."


def _converted(name: str, given: Given) -> Any:
    """Return a value in its type and range. Text stands for a number, save in a file."""
    if name in TEXTS:
        return _text(given)
    return _in_range(_number(name, given), RANGES[name], given)


def _in_range(number: float, allowed: Range, given: Given) -> float:
    if not allowed.least <= number <= allowed.most:
        raise UsageInvalid(what=f"{given.quote} is out of range", remedy=remedy_of(allowed))
    return number


def _text(given: Given) -> str:
    if isinstance(given.value, str) and given.value.strip():
        return given.value
    raise UsageInvalid(what=f"{given.quote} is no text", remedy="Write it as text, in quotes.")


def _number(name: str, given: Given) -> int | float:
    value = given.value
    kind: type[int] | type[float] = float if name.endswith("_s") else int
    if name.endswith("_bytes"):
        if type(value) is int:
            return value
        size = parse_size(value) if isinstance(value, str) else None
        if size is not None:
            return size
        raise UsageInvalid(what=f"{given.quote} is no size", remedy="Write it as 64MiB or 64MB.")
    is_number = type(value) is int or (type(value) is float and kind is float)
    if is_number or (isinstance(value, str) and not given.typed):
        with suppress(ValueError, OverflowError):
            return kind(value)
    wanted = "number" if kind is float else "whole number"
    raise UsageInvalid(what=f"{given.quote} is no {wanted}", remedy=f"Write a {wanted}.")


def _stages_of_file(file: ConfigFile | None) -> tuple[dict[str, StageOptions], dict[str, str]]:
    """Return the options of each stage that has a table, and where each stands.

    Which stages there are, the pipeline knows: `Pipeline.with_stages` refuses the others.
    """
    tables = {} if file is None else file.values.get("stages", {})
    stages: dict[str, StageOptions] = {}
    places: dict[str, str] = {}
    if file is None or not tables:
        return stages, places
    for name, table in tables.items() if isinstance(tables, dict) else [("", tables)]:
        above = f"stages.{name}" if name else "stages"
        if not isinstance(table, dict):
            what = f"{file.place(above)}: {above} = {table!r} is no table"
            raise UsageInvalid(what=what, remedy="Write [stages.NAME], then durable = true.")
        values = {}
        for option, value in table.items():
            path = f"{above}.{option}"
            places[path] = place = file.place(path)
            if option not in STAGE_OPTIONS:
                what = f"{place}: a stage has no option {option}"
                raise UsageInvalid(what=what, remedy=_nearest(option, STAGE_OPTIONS))
            given = Given(value, place, f"{place}: {option} = {value!r}", typed=True)
            values[option] = _stage_option(option, given)
        stages[name] = StageOptions(**values)
    return stages, places


def _stage_option(option: str, given: Given) -> Any:
    if option == "durable":
        if isinstance(given.value, bool):
            return given.value
        what = f"{given.quote} is neither true nor false"
        raise UsageInvalid(what=what, remedy="Write true or false.")
    if option == "log":
        return "" if given.value == "" else _text(given)
    return _in_range(_number(option, given), STAGE_RANGES[option], given)


def _spark_of_file(file: ConfigFile | None) -> dict[str, Given]:
    if file is None or "spark" not in file.values:
        return {}
    table = file.values["spark"]
    if not isinstance(table, dict):
        what = f"{file.place('spark')}: spark = {table!r} is no table"
        raise UsageInvalid(what=what, remedy='Write [spark], then "sql.shuffle.partitions" = 8.')
    given = {}
    for path, value in _leaves(table, "spark"):
        name = path if not path.startswith("spark.spark.") else path.removeprefix("spark.")
        place = file.place(path)
        if not isinstance(value, (str, int, float)):
            what = f"{place}: {name} = {value!r} is neither text nor number nor true nor false"
            raise UsageInvalid(what=what, remedy="Write it as text, in quotes.")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        given[name] = Given(text, place)
    return given


def _leaves(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        path = f"{above}.{name}"
        if isinstance(value, dict):
            yield from _leaves(value, path)
        else:
            yield path, value


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        # Not the text itself: there may be a password in it.
        what = f"{SPARK_VARIABLE}: {error}"
        raise UsageInvalid(what=what, remedy="Quote it as a shell would.") from error


def _pairs(origin: str, pairs: Sequence[str]) -> dict[str, Given]:
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            remedy = "Write it as KEY=VALUE, where KEY begins with `spark.`."
            raise UsageInvalid(what=f"{origin} {name + equals!r}", remedy=remedy)
        given[name] = Given(value, origin)
    return given


def _lines(text: str) -> dict[str, int]:
    """Return the line of each dotted name: near enough to find it by, not another TOML parser."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            table = _dotted(header[1]) + "."
            found.setdefault(table.removesuffix("."), number)
        elif "=" in line:
            found.setdefault(table + _dotted(line.partition("=")[0]), number)
    return found


def _dotted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.strip().split("."))
