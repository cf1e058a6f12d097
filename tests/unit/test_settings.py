"""Settings: which place wins, and what is refused, in one line that says where and what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.settings import (
    NAMES,
    SPARK_VARIABLE,
    TEXTS,
    VARIABLES,
    ConfigFile,
    Settings,
    load_settings,
    parse_file,
    resolve,
)
from holdfast.config import DEFAULT, MIB, RANGES, Config
from holdfast.errors import StorageFailed, UsageInvalid


def file_of(text: str) -> ConfigFile:
    return parse_file("holdfast.toml", text.encode())


def from_file(text: str) -> Settings:
    return resolve(file_of(text), {}, {})


def refused(
    *parts: str,
    file: str = "",
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> None:
    with pytest.raises(UsageInvalid) as raised:
        resolve(file_of(file), env or {}, flags or {})
    text = str(raised.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text


def test_nothing_given_is_the_defaults() -> None:
    settings = resolve(None, {}, {})
    assert settings.config == DEFAULT == Config()
    assert settings.origins == dict.fromkeys(NAMES, "default")


def test_a_flag_beats_the_environment_which_beats_the_file() -> None:
    file = file_of("attempts_max = 4\nbatch_bytes = 10\n\nchunk_bytes = 20\nbatch_chunks = 5\n")
    env = {"HOLDFAST_BATCH_BYTES": "11", "HOLDFAST_CHUNK_BYTES": "21", "PATH": "x"}
    settings = resolve(file, env, {"chunk_bytes": "22", "batch_bytes": None, "master": None})
    assert settings.config == Config(attempts_max=4, batch_bytes=11, chunk_bytes=22, batch_chunks=5)
    assert settings.origins == {
        **dict.fromkeys(NAMES, "default"),
        "attempts_max": "holdfast.toml:1",
        "batch_chunks": "holdfast.toml:5",
        "batch_bytes": "HOLDFAST_BATCH_BYTES",
        "chunk_bytes": "--chunk-bytes",
    }


def test_every_setting_can_be_given_in_the_file_and_in_the_environment() -> None:
    values = {name: RANGES[name].least for name in RANGES} | {
        "master": "local[1]",
        "log": "memory://x",
    }
    assert set(values) == set(NAMES)
    whole = {name: v if isinstance(v, str) else f"{v:g}" for name, v in values.items()}
    lines = [f'{n} = "{v}"' if n in TEXTS else f"{n} = {v}" for n, v in whole.items()]
    by_file = from_file("\n".join(lines)).config
    by_env = resolve(None, {var: whole[name] for var, name in VARIABLES.items()}, {}).config
    assert by_file == by_env
    assert {name: getattr(by_file, name) for name in NAMES} == values


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("64MiB", 64 * MIB),
        ("64 mib", 64 * MIB),
        ("1.5GB", 1_500_000_000),
        ("1kB", 1000),
        ("2KiB", 2048),
        ("7", 7),
        ("7B", 7),
    ],
)
def test_sizes_as_people_write_them(written: str, size: int) -> None:
    assert from_file(f'batch_bytes = "{written}"').config.batch_bytes == size
    assert resolve(None, {}, {"batch_bytes": written}).config.batch_bytes == size
    assert resolve(None, {"HOLDFAST_BATCH_BYTES": written}, {}).config.batch_bytes == size


@pytest.mark.parametrize("written", ["64M", "MiB", "-1MiB", "1.5B", "1e6", "1 2", "64MiBs"])
def test_what_is_no_size_is_refused_with_an_example(written: str) -> None:
    refused("--batch-bytes", written, "64MiB", flags={"batch_bytes": written})


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    refused("holdfast.toml:2", "batch_byte", "Did you mean batch_bytes?", file="\nbatch_byte = 1\n")
    refused("holdfast.toml:1", "zzz", "Known: chunk_bytes,", file="zzz = 1")
    refused("holdfast.toml:2", "sparks", "Did you mean spark?", file="\n[sparks]\na = 1")
    refused("holdfast.toml:1", "run", file="[run]\nbatch_bytes = 1\n")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('batch_chunks = "5"', ("batch_chunks = '5'", "whole number")),
        ("batch_chunks = 1.5", ("batch_chunks = 1.5", "whole number")),
        ("batch_chunks = true", ("batch_chunks = True", "whole number")),
        ("batch_bytes = true", ("batch_bytes = True", "64MiB")),
        ("batch_bytes = 1.5", ("batch_bytes = 1.5", "64MiB")),
        ('transaction_wait_s = "1"', ("transaction_wait_s", "Write a number")),
        ("master = 1", ("master = 1", "in quotes")),
        ('master = ""', ("master = ''",)),
        ("batch_chunks = 0", ("batch_chunks = 0 is out of range", "from 1 to 100000")),
        ("transaction_wait_s = nan", ("out of range",)),
        ("transaction_wait_s = inf", ("out of range",)),
        ("spark = 3", ("spark = 3", "[spark]")),
        ("spark.a.b = [1]", ("spark.a.b = [1]", "in quotes")),
        ("spark.day = 2020-01-01", ("spark.day", "in quotes")),
    ],
)
def test_a_wrong_value_in_the_file_is_refused_with_file_line_and_key(
    line: str, parts: tuple[str, ...]
) -> None:
    refused("holdfast.toml:3: ", *parts, file=f"# a comment\n\n{line}\n")


@pytest.mark.parametrize(
    ("variable", "value", "parts"),
    [
        ("HOLDFAST_BATCH_CHUNKS", "x", ("HOLDFAST_BATCH_CHUNKS=x", "whole number")),
        ("HOLDFAST_BATCH_CHUNKS", "0", ("HOLDFAST_BATCH_CHUNKS=0", "from 1")),
        ("HOLDFAST_TRANSACTION_WAIT_S", "soon", ("Write a number",)),
        ("HOLDFAST_BATCH_BYTE", "1", ("Did you mean HOLDFAST_BATCH_BYTES?",)),
        ("HOLDFAST_BATCHBYTES", "1", ("Did you mean HOLDFAST_BATCH_BYTES?",)),
        ("HOLDFAST_SPARK_CON", "1", (f"Did you mean {SPARK_VARIABLE}?",)),
        (SPARK_VARIABLE, "spark.a", ("'spark.a'", "KEY=VALUE")),
        (SPARK_VARIABLE, "'spark.a=1", (SPARK_VARIABLE, "Quote it")),
    ],
)
def test_a_wrong_variable_is_refused_by_name(
    variable: str, value: str, parts: tuple[str, ...]
) -> None:
    refused(*parts, env={variable: value})


def test_variables_for_other_purposes_and_empty_ones_are_left_alone() -> None:
    others = ("LEDGER", "CRASH", "CRASH_RECORD", "FLIPS", "PAIR_STRIDE", "TOKEN", "URL", "HOME")
    env = {f"HOLDFAST_{name}": "x" for name in others}
    assert resolve(None, {**env, "HOLDFAST_BATCH_BYTES": ""}, {}) == resolve(None, {}, {})


def test_a_value_that_a_stronger_place_hides_is_checked_all_the_same() -> None:
    refused("holdfast.toml:1", file="batch_bytes = 0", flags={"batch_bytes": "5"})


def test_spark_settings_come_from_all_three_places() -> None:
    file = file_of(
        'spark.sql.shuffle.partitions = 8\n[spark.ui]\nenabled = true\n[spark.driver]\nmemory="2g"'
    )
    env = {SPARK_VARIABLE: "spark.driver.memory=3g 'spark.driver.extraJavaOptions=-Da=1 -Db=2'"}
    settings = resolve(file, env, {}, ["spark.ui.enabled=false", "spark.x=a=b", "spark.empty="])
    assert settings.config.spark == {
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": "-Da=1 -Db=2",
        "spark.x": "a=b",
        "spark.empty": "",
    }
    origins = {name: where for name, where in settings.origins.items() if name not in NAMES}
    assert origins == {
        "spark.sql.shuffle.partitions": "holdfast.toml:1",
        "spark.ui.enabled": "--spark-conf",
        "spark.driver.memory": SPARK_VARIABLE,
        "spark.driver.extraJavaOptions": SPARK_VARIABLE,
        "spark.x": "--spark-conf",
        "spark.empty": "--spark-conf",
    }


def test_spark_settings_may_be_written_with_their_whole_name() -> None:
    text = '[spark]\n"spark.speculation" = true\nspeculation.interval = "1s"\nspark.n = 1.5\n'
    settings = from_file(text)
    assert settings.config.spark == {
        "spark.speculation": "true",
        "spark.speculation.interval": "1s",
        "spark.n": "1.5",
    }
    assert [settings.origins[name] for name in settings.config.spark] == [
        f"holdfast.toml:{line}" for line in (2, 3, 4)
    ]


@pytest.mark.parametrize("pair", ["novalue", "=x", "sql.shuffle.partitions=8", ""])
def test_a_spark_flag_is_a_whole_name_and_a_value(pair: str) -> None:
    with pytest.raises(UsageInvalid, match="begins with"):
        resolve(None, {}, {}, [pair])


def test_a_file_that_is_not_toml_or_not_utf8_is_refused_with_its_place() -> None:
    with pytest.raises(UsageInvalid, match=r"holdfast\.toml: .*line 2"):
        parse_file("holdfast.toml", b"batch_bytes = 1\nbatch_chunks = \n")
    with pytest.raises(UsageInvalid, match=r"holdfast\.toml: byte 4 is not UTF-8"):
        parse_file("holdfast.toml", b"# a \xff\n")


def test_the_file_is_that_of_the_working_directory_or_the_one_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, {}).config == DEFAULT
    (tmp_path / "holdfast.toml").write_text("batch_chunks = 7")
    (tmp_path / "other.toml").write_text("batch_chunks = 8")
    assert load_settings(None, {}).config.batch_chunks == 7
    assert load_settings(Path("other.toml"), {}).config.batch_chunks == 8
    monkeypatch.setenv("HOLDFAST_BATCH_CHUNKS", "9")
    assert load_settings(Path("other.toml"), {}).config.batch_chunks == 9
    with pytest.raises(UsageInvalid, match=r"none\.toml"):
        load_settings(Path("none.toml"), {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageFailed, match="folder"):
        load_settings(Path("folder"), {})


@pytest.mark.parametrize("name", sorted(RANGES))
def test_a_number_out_of_range_is_refused_in_python_as_well(name: str) -> None:
    def made(value: float) -> Any:
        values: dict[str, Any] = {name: value}
        return getattr(Config(**values), name)

    for value in (RANGES[name].least - 1, RANGES[name].most + 1, float("nan")):
        with pytest.raises(UsageInvalid, match=name):
            made(value)
    for value in (RANGES[name].least, RANGES[name].most):
        assert made(value) == value


def test_the_defaults_are_in_range() -> None:
    for name, allowed in RANGES.items():
        assert allowed.least <= getattr(DEFAULT, name) <= allowed.most
