"""A directory as documents: the same ones each time, each whole, all rows in one of them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.client.answers import InputInfo
from holdfast.client.documents import Document, InputFile, cut_files, find_files, key_of, number
from holdfast.errors import HeaderWrong, SubmissionChanged, UsageInvalid
from holdfast.intake.tables import TableSpec

CELL = st.text(st.sampled_from('ab",\n 5'), max_size=6)
ROWS = st.lists(st.tuples(CELL, CELL), max_size=30)
SALES = TableSpec(name="sales", format="csv", schema="shop string, amount int", segment=1)


def info(table: str, *, optional: bool = False) -> InputInfo:
    return InputInfo(table, "csv", (), optional)


def cut(folder: Path, *inputs: InputInfo, chunk_bytes: int = 1 << 20) -> list[InputFile]:
    found = find_files(folder, None)
    return cut_files(folder, found, chunk_bytes=chunk_bytes, inputs=inputs)


def written(path: Path, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    path.write_bytes(text.getvalue().encode())


def documents_of(folder: Path, *tables: str, chunk_bytes: int = 1 << 20) -> list[Document]:
    files = cut(folder, chunk_bytes=chunk_bytes)
    return number(folder, files, [info(table) for table in tables])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(first=ROWS, second=ROWS, chunk_bytes=st.integers(1, 80))
def test_all_rows_are_in_exactly_one_whole_document(
    tmp_path: Path, first: list[tuple[str, str]], second: list[tuple[str, str]], chunk_bytes: int
) -> None:
    """Each document has the header, ends with a row, and has the checksum that is sent with it."""
    head = [("x", "y")]
    written(tmp_path / "sales_1.csv", head + first)
    written(tmp_path / "sales_2.csv", head + second)
    found = documents_of(tmp_path, "sales", chunk_bytes=chunk_bytes)
    assert [one.ordinal for one in found] == list(range(1, len(found) + 1))
    rows: list[tuple[str, ...]] = []
    for one in found:
        data = b"".join(one.pieces())
        assert len(data) == one.size
        assert hashlib.sha256(data).hexdigest() == one.checksum
        header, *body = csv.reader(io.StringIO(data.decode(), newline=""))
        assert header == ["x", "y"]
        rows += [tuple(row) for row in body]
    assert rows == first + second
    assert documents_of(tmp_path, "sales", chunk_bytes=chunk_bytes) == found


def test_a_byte_order_mark_is_in_the_first_document_only(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4\r\n")
    found = [b"".join(one.pieces()) for one in documents_of(tmp_path, "t", chunk_bytes=8)]
    assert found == [b"\xef\xbb\xbfa,b\r\n", b"a,b\n1,2\r\n", b"a,b\n3,4\r\n"]


def test_json_lines_are_cut_behind_a_newline(tmp_path: Path) -> None:
    lines = [json.dumps({"n": n, "text": "a\nb"}) + "\n" for n in range(50)]
    (tmp_path / "t.jsonl").write_text("".join(lines))
    found = documents_of(tmp_path, "t", chunk_bytes=100)
    assert len(found) > 10
    assert {one.format for one in found} == {"json"}
    data = [b"".join(one.pieces()).decode() for one in found]
    assert all(text.endswith("\n") for text in data)
    assert "".join(data) == "".join(lines)
    assert [hashlib.sha256(one.encode()).hexdigest() for one in data] == [
        one.checksum for one in found
    ]


def test_the_key_is_that_of_names_bytes_and_cuts(tmp_path: Path) -> None:
    """The same files, elsewhere and later: the same run. Anything else: another one."""
    keys: list[str] = []
    for name, content, size in (
        ("t.csv", "a\n1\n2\n", 100),
        ("t.csv", "a\n1\n3\n", 100),
        ("t_1.csv", "a\n1\n2\n", 100),
        ("t.csv", "a\n1\n2\n", 3),
    ):
        folder = tmp_path / str(len(keys))
        folder.mkdir()
        (folder / name).write_text(content)
        keys.append(key_of(cut(folder, chunk_bytes=size)))
    again = tmp_path / "again"
    again.mkdir()
    (again / "t.csv").write_text("a\n1\n2\n")
    assert len(set(keys)) == 4
    assert key_of(cut(again, chunk_bytes=100)) == keys[0]
    assert len(keys[0]) <= 64


def test_a_file_that_changes_while_it_is_sent_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n2\n")
    (one,) = documents_of(tmp_path, "t")
    path.write_text("a\n1\n3\n")
    assert not one.is_unchanged()
    path.write_text("a\n1\n")
    with pytest.raises(SubmissionChanged) as refused:
        list(one.pieces())
    assert refused.value.path == str(path)


def test_a_table_without_a_file_is_refused_unless_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_text("a\n1\n")
    files = cut(tmp_path, chunk_bytes=100)
    with pytest.raises(UsageInvalid, match="no file for table shops"):
        number(tmp_path, files, [info("sales"), info("shops")])
    assert number(tmp_path, files, [info("sales"), info("shops", optional=True)])
    assert number(tmp_path, files, [info("sales"), info("shops")], empty=["shops"])


@pytest.mark.parametrize("name", ["other.csv", "notes.txt", "sales.csv.gz"])
def test_a_file_of_no_table_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "sales.csv").write_text("a\n1\n")
    (tmp_path / name).write_text("a\n1\n")
    files = cut(tmp_path, chunk_bytes=100)
    with pytest.raises(UsageInvalid, match=name):
        number(tmp_path, files, [info("sales")])


def test_headers_are_checked_by_the_server_and_names_by_the_pipeline_at_hand(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("shop,price\n")
    taken = InputInfo("sales", "csv", ("shop", "amount"), optional=False)
    found = find_files(tmp_path, [SALES])
    with pytest.raises(HeaderWrong):
        cut_files(tmp_path, found, chunk_bytes=100, inputs=[taken])
    path.unlink()
    with pytest.raises(UsageInvalid, match="no file for table sales"):
        find_files(tmp_path, [SALES])
    assert find_files(tmp_path, [SALES], empty=["sales"]) == []
    path.write_text("shop,amount\na,1\n")
    assert len(cut_files(tmp_path, find_files(tmp_path, [SALES]), chunk_bytes=100)) == 1


def test_files_of_a_table_of_binary_files_are_refused(tmp_path: Path) -> None:
    """As the pipeline at hand says, or else as the server does; whatever their names end with."""
    images = TableSpec(name="images", format="binaryFile", schema="", segment=1, optional=True)
    taken = InputInfo("images", "binaryFile", (), optional=True)
    (tmp_path / "images").mkdir()
    assert find_files(tmp_path, [images]) == []
    assert cut(tmp_path, taken) == []
    for name in ("images/a.png", "images/deep/a.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a\n1\n")
        with pytest.raises(UsageInvalid, match="table images is made of binary files"):
            find_files(tmp_path, [images])
        with pytest.raises(UsageInvalid, match="table images is made of binary files"):
            cut(tmp_path, taken)
        path.unlink()


@pytest.mark.parametrize("name", ["t.csv", "t/1.jsonl"])
def test_a_table_without_declared_columns_takes_parquet_only(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("a\n1\n")
    with pytest.raises(UsageInvalid, match=f"{name} is (csv|json), and table t takes Parquet only"):
        cut(tmp_path, InputInfo("t", "parquet", (), optional=False))
    assert len(cut(tmp_path, InputInfo("t", "parquet", ("a",), optional=False))) == 1
