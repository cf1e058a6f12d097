"""What a document must be before its chunk is bound: its format, its header, its footer."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from tests.crash.workloads import SMALL, make_pipeline

from holdfast._base.files import sha256_of
from holdfast._base.ids import Ordinal, RunId
from holdfast.blobs.local import LocalBlobs
from holdfast.engine.barrier import is_complete
from holdfast.engine.drive import open_run
from holdfast.engine.state import Held, hold
from holdfast.errors import DocumentRefused, FormatRefused
from holdfast.intake.csv_rows import header_of
from holdfast.intake.documents import Documents
from holdfast.intake.header import names_in
from holdfast.intake.tables import TableSpec
from holdfast.intake.upload import put_chunk
from holdfast.store.rows import Chunk, ChunkKind, NewRun, SenderDecl

DOCUMENTS = Documents.of(make_pipeline().spec().tables, SMALL)
BINARY = Documents.of(
    (TableSpec("images", "binaryFile", "", 1), TableSpec("rows", "parquet", "", 1)), SMALL
)
RUN = RunId("run-1")


def chunk(*, table: str = "sales", fmt: str = "csv") -> Chunk:
    return Chunk(table, "", Ordinal(1), ChunkKind.BLOB, "", 0, "", format=fmt)


class Scene:
    def __init__(self, held: Held, root: Path) -> None:
        self.store, self.blobs = held.store, LocalBlobs(held.directory.blobs)
        self.run_id: RunId = open_run(held.store, make_pipeline().spec(), root).run_id

    def put(self, *pieces: bytes) -> bool:
        sent = chunk()
        return put_chunk(
            *(self.store, self.blobs, self.run_id, sent, pieces),
            barrier=is_complete,
            check=DOCUMENTS.check,
        )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with hold(tmp_path / "state", SMALL) as held:
        yield Scene(held, tmp_path)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"a,1\n", "missing: shop, amount"),
        (b"amount,shop\n1,a\n", "in another order"),
        (b"shop\na\n", "missing: amount"),
        (b"shop,amount,more\na,1,2\n", "extra: more"),
        (b"shop,shop\na,1\n", "twice: shop"),
        (b"\n", "missing: shop, amount"),
        (b"\xef\xbb\xbf", "missing: shop, amount"),
        (b"shop,\xff\na,1\n", "not UTF-8 text"),
        (b'shop,"amount\na,1\n', "a quote is never closed"),
        (b'"' + b"x" * 300_000, "a quote is never closed"),
        (b"x" * 300_000, "missing: shop, amount"),
        (b"a,b," * 16_000, "twice: a, b"),  # seconds, if each name is counted anew
    ],
)
def test_a_wrong_header_is_refused_and_the_run_unchanged(
    scene: Scene, text: bytes, named: str
) -> None:
    with pytest.raises(DocumentRefused) as caught:
        scene.put(text)
    assert (caught.value.table, caught.value.ordinal) == ("sales", 1)
    assert named in caught.value.what
    assert "shop,amount" in caught.value.remedy
    assert len(str(caught.value)) < 2000
    assert "\n" not in str(caught.value)
    assert list(scene.blobs.names()) == []
    assert scene.store.list_chunks(scene.run_id) == []


@pytest.mark.parametrize(
    "pieces",
    [
        (b"shop,amount\na,1\n",),
        (b"sh", b"op,am", b"", b"ount\na,1\n"),
        (b"\xef\xbb\xbfshop,amount\r\na,1\r\n",),
        (b'"shop","amount"\na,1\n',),
        (b"shop,amount",),
        (b"",),
        (b"shop,amount\n", b"a,1\n" * 100_000),
    ],
)
def test_a_right_header_is_taken(scene: Scene, pieces: tuple[bytes, ...]) -> None:
    assert scene.put(*pieces)


def test_a_header_as_long_as_it_must_be_is_taken(tmp_path: Path) -> None:
    names = [f"column_{number:06}_" + "x" * 80 for number in range(5000)]
    schema = ", ".join(f"{name} int" for name in names)
    documents = Documents.of((TableSpec("sales", "csv", schema, 1),), SMALL)
    blobs = LocalBlobs(tmp_path)
    header = ",".join(f'"{name}"' for name in names).encode()
    blobs.create("right", [header, b"\n1"])
    documents.check(blobs, chunk(), "right")
    blobs.create("wrong", [header, b"y\n1"])
    with pytest.raises(DocumentRefused):
        documents.check(blobs, chunk(), "wrong")


@pytest.mark.parametrize(
    ("documents", "columns", "missing"),
    [
        (DOCUMENTS, ["shop", "amount"], None),
        (DOCUMENTS, ["more", "amount", "shop"], None),
        (DOCUMENTS, ["shop", "amonut"], "amount"),
        (DOCUMENTS, ["Shop"], "shop, amount"),
        (BINARY, ["anything"], None),  # declares no columns
    ],
)
def test_parquet_that_lacks_a_declared_column_is_refused(
    tmp_path: Path, documents: Documents, columns: list[str], missing: str | None
) -> None:
    """Spark would read it as null wherever another file of the same batch has it."""
    blobs = LocalBlobs(tmp_path)
    pq.write_table(pa.table({name: [1] for name in columns}), tmp_path / "made")
    blobs.create("sent", [(tmp_path / "made").read_bytes()])
    sent = chunk(table="rows" if documents is BINARY else "sales", fmt="parquet")
    if missing is None:
        documents.check(blobs, sent, "sent")
        return
    with pytest.raises(DocumentRefused, match=f"it has no column {missing}\\.") as caught:
        documents.check(blobs, sent, "sent")
    assert (caught.value.table, caught.value.ordinal) == ("sales", 1)


class Undeclared:
    """A run with a table of no declared columns, that two senders fill."""

    def __init__(self, held: Held, root: Path) -> None:
        self.root, self.store = root, held.store
        self.blobs = LocalBlobs(held.directory.blobs)
        senders = tuple(SenderDecl("rows", sender, 1) for sender in ("", "b"))
        self.store.create_run(NewRun(RUN, "client", "p", {}, 1, senders, 0))

    def put(self, ordinal: int, columns: Any, *, sender: str = "") -> bool:
        pq.write_table(pa.table(columns), self.root / "sent.parquet")
        data = (self.root / "sent.parquet").read_bytes()
        checksum = sha256_of([data])
        kind = ChunkKind.BLOB
        sent = Chunk("rows", sender, Ordinal(ordinal), kind, "", 0, checksum, format="parquet")
        return put_chunk(
            *(self.store, self.blobs, RUN, sent, [data]), barrier=is_complete, check=BINARY.check
        )


INTS, TEXTS = pa.array([1, 2]), pa.array(["x", "y"])


@pytest.fixture
def undeclared(tmp_path: Path) -> Iterator[Undeclared]:
    with hold(tmp_path / "state", SMALL) as held:
        yield Undeclared(held, tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        {"a": INTS, "bb": TEXTS},
        {"a": INTS},
        {"a": INTS, "b": TEXTS, "c": INTS},
        {"a": INTS.cast(pa.int32()), "b": TEXTS},
        {"a": INTS, "b": TEXTS.cast(pa.binary())},
        {"a": INTS.cast(pa.timestamp("us")), "b": TEXTS},
        {"a": INTS, "b": pa.array([["x"], []])},
        {"a": INTS, "b": pa.array([{"c": 1}, {"c": 2}])},
        {f"column_{number}": INTS for number in range(500)},
    ],
    ids=["renamed", "less", "more", "narrower", "bytes", "instant", "list", "struct", "many"],
)
def test_chunks_of_a_table_without_declared_columns_have_the_same(
    undeclared: Undeclared, other: dict[str, pa.Array]
) -> None:
    """Spark takes the columns of one for those of all: `b` was null where it was called `bb`.

    Whichever came first says what they are, in every sender's chunks, whatever batch they fall in.
    """
    assert undeclared.put(2, {"a": INTS, "b": TEXTS})
    bound, names = undeclared.store.list_chunks(RUN), list(undeclared.blobs.names())
    for sender in ("", "b"):
        with pytest.raises(DocumentRefused) as caught:
            undeclared.put(1, other, sender=sender)
        assert (caught.value.table, caught.value.ordinal) == ("rows", 1)
        assert len(str(caught.value)) < 2000
    assert undeclared.store.list_chunks(RUN) == bound
    assert list(undeclared.blobs.names()) == names
    assert undeclared.put(1, {"a": INTS, "b": TEXTS}, sender="b")


def test_what_spark_reads_alike_is_alike(undeclared: Undeclared) -> None:
    """The order of columns, their values, and which may be null are of no matter."""
    assert undeclared.put(1, {"a": INTS, "b": TEXTS})
    assert not undeclared.put(1, {"a": INTS, "b": TEXTS})
    assert undeclared.put(2, {"b": pa.array(["z", None]), "a": INTS})
    required = pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())])
    assert undeclared.put(3, pa.table({"a": INTS, "b": TEXTS}, required))
    assert undeclared.put(4, {"a": INTS[:0], "b": TEXTS[:0]})


@pytest.mark.parametrize(
    ("documents", "table", "fmt", "taken"),
    [
        (DOCUMENTS, "sales", "csv", True),
        (DOCUMENTS, "sales", "json", True),
        (DOCUMENTS, "sales", "binaryFile", False),
        (DOCUMENTS, "nothing", "csv", True),  # whoever binds it says so
        (BINARY, "images", "csv", False),
        (BINARY, "images", "binaryFile", True),
        (BINARY, "rows", "csv", False),
        (BINARY, "rows", "parquet", True),
    ],
)
def test_a_table_takes_the_formats_it_can_be_read_from(
    documents: Documents, table: str, fmt: str, taken: bool
) -> None:
    if taken:
        documents.check_format(chunk(table=table, fmt=fmt))
        return
    with pytest.raises(FormatRefused):
        documents.check_format(chunk(table=table, fmt=fmt))


@settings(derandomize=True, max_examples=500, deadline=None)
@given(text=st.text(st.sampled_from('ab,"\n\r \0;\u00e9'), max_size=12))
def test_a_header_has_the_names_that_the_parser_of_the_rows_finds(text: str) -> None:
    """Two readers, one opinion: what is taken here is what Arrow takes, name by name."""
    header, _ = header_of(text.encode())
    if not header:
        return
    read = arrow_csv.ReadOptions(use_threads=False, block_size=len(header) + 2)
    parsing = arrow_csv.ParseOptions(newlines_in_values=True)
    try:
        source = pa.BufferReader(header + b"\n")
        wanted = arrow_csv.read_csv(source, read, parsing).column_names
    except pa.ArrowInvalid:
        with pytest.raises(csv.Error):
            names_in(header)
        return
    assert names_in(header) == wanted
