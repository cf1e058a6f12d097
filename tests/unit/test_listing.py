from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from holdfast.errors import UsageInvalid
from holdfast.intake.listing import belongs_to, list_tables
from holdfast.intake.tables import TableSpec


def table(name: str, fmt: str = "csv", *, optional: bool = False) -> TableSpec:
    return TableSpec(name=name, format=fmt, schema="", segment=1, optional=optional)


def make(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("transactions.csv", "transactions"),
        ("transactions_202401.csv", "transactions"),
        ("transactions/any.csv", "transactions"),
        ("transaction_items_202401.csv", "transaction_items"),
        ("transactions_archive.csv", "transactions_archive"),
        ("transactions_archive_1.csv", "transactions_archive"),
        ("transactions_archives.csv", "transactions"),
        ("transactions-202401.csv", None),
        ("transactions2.csv", None),
        ("Transactions.csv", None),
        ("transaction.csv", None),
        ("transactions.CSV", None),
        ("transactions.json", None),
        ("transactions/deep/any.csv", None),
        ("other/transactions.csv", None),
    ],
)
def test_a_file_belongs_to_the_table_with_the_longest_matching_name(
    path: str, owner: str | None
) -> None:
    tables = [table("transactions"), table("transaction_items"), table("transactions_archive")]
    assert belongs_to(PurePosixPath(path), tables) == owner
    assert belongs_to(PurePosixPath(path), tables[::-1]) == owner


@pytest.mark.parametrize("name", ["events.json", "events_1.jsonl", "events/x.ndjson"])
def test_json_has_three_extensions(name: str) -> None:
    assert belongs_to(PurePosixPath(name), [table("events", "json")]) == "events"


def test_a_binary_table_owns_every_file_below_its_directory_and_no_other(tmp_path: Path) -> None:
    make(tmp_path, "images/a.png", "images/deep/b", "images/c.csv.gz", "people.csv")
    found = list_tables(tmp_path, [table("images", "binaryFile"), table("people")])
    names = [path.relative_to(tmp_path).as_posix() for path in found["images"]]
    assert names == ["images/a.png", "images/c.csv.gz", "images/deep/b"]


def test_files_are_listed_by_table_absolute_and_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "b_2.csv", "b_10.csv", "b/1.csv", "a.csv")
    monkeypatch.chdir(tmp_path)
    found = list_tables(Path("."), [table("b"), table("a")])
    assert found == {
        "b": sorted(tmp_path / name for name in ("b_2.csv", "b_10.csv", "b/1.csv")),
        "a": [tmp_path / "a.csv"],
    }


def test_hidden_files_and_directories_belong_to_nobody(tmp_path: Path) -> None:
    make(tmp_path, "a.csv", "_SUCCESS", ".a.csv.crc", "a/_temporary/x.csv", ".git/a.csv")
    assert list_tables(tmp_path, [table("a")]) == {"a": [tmp_path / "a.csv"]}


def test_an_optional_table_may_have_no_file_and_a_produced_one_is_not_looked_for(
    tmp_path: Path,
) -> None:
    make(tmp_path, "a.csv")
    produced = TableSpec(name="kept", format="parquet", schema="", segment=2, produced=True)
    found = list_tables(tmp_path, [table("a"), table("b", optional=True), produced])
    assert found == {"a": [tmp_path / "a.csv"], "b": []}


def test_a_needed_table_without_a_file_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.csv")
    with pytest.raises(UsageInvalid) as caught:
        list_tables(tmp_path, [table("a"), table("b")])
    assert "table b" in caught.value.what
    assert str(tmp_path) in caught.value.what
    assert "b_*.csv" in caught.value.remedy


def test_a_file_of_no_table_is_named_unless_unknown_files_are_ignored(tmp_path: Path) -> None:
    make(tmp_path, "a.csv", "readme.txt")
    with pytest.raises(UsageInvalid, match=r"readme\.txt"):
        list_tables(tmp_path, [table("a")])
    found = list_tables(tmp_path, [table("a")], ignore_unknown=True)
    assert found == {"a": [tmp_path / "a.csv"]}


@pytest.mark.parametrize("extension", ["gz", "zst", "bz2"])
@pytest.mark.parametrize("ignore_unknown", [True, False])
def test_a_compressed_input_is_refused_even_if_unknown_files_are_ignored(
    tmp_path: Path, extension: str, ignore_unknown: bool
) -> None:
    make(tmp_path, "a.csv", f"a_2.csv.{extension}")
    with pytest.raises(UsageInvalid) as caught:
        list_tables(tmp_path, [table("a")], ignore_unknown=ignore_unknown)
    assert f"a_2.csv.{extension}" in caught.value.what
    assert "-dc" in caught.value.remedy


def test_a_missing_directory_and_a_file_in_its_place_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "a.csv")
    with pytest.raises(UsageInvalid, match="does not exist"):
        list_tables(tmp_path / "none", [table("a")])
    with pytest.raises(UsageInvalid, match="not a directory"):
        list_tables(tmp_path / "a.csv", [table("a")])


def test_a_directory_that_cannot_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a/1.csv")
    real = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("a"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    # Root may read everything, so the refusal is played.
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UsageInvalid, match="Permission denied"):
        list_tables(tmp_path, [table("a")])
