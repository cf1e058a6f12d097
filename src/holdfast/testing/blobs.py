"""The contract suite of blob stores.

A check takes `connect`, which opens the same blobs each time it is called; none at first.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

from holdfast.blobs.contract import BlobStore
from holdfast.errors import Damaged, UsageInvalid
from holdfast.testing.expect import WAIT_S, error_of, run_threads

Connect = Callable[[], BlobStore]
Check = Callable[[Connect], None]

BAD_NAMES = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    "../../etc/passwd",
    "a b",
    "a\x00b",
    "a\nb",
    "a\\b",
    "caf\u00e9",
    "x" * 129,
    ".tmp-x",
    "a/.tmp-x",
)


def content(blobs: BlobStore, name: str) -> bytes:
    """Return the bytes of a blob."""
    return b"".join(blobs.read(name))


def check_bytes_come_back(connect: Connect) -> None:
    """What was created is read back, also empty, also given in many pieces."""
    blobs = connect()
    for name, pieces in (
        ("a/b=1/c.csv", [b"x", b"", b"yz"]),
        ("empty", []),
        ("z", [b"0" * 3000000]),
    ):
        info = blobs.create(name, iter(pieces))
        data = b"".join(pieces)
        checksum = hashlib.sha256(data).hexdigest()
        assert (info.name, info.size, info.checksum) == (name, len(data), checksum)
        assert content(blobs, name) == data
        assert blobs.exists(name)
    assert content(connect(), "a/b=1/c.csv") == b"xyz"


def check_a_name_is_never_given_twice(connect: Connect) -> None:
    """The same bytes again are success; others are refused, and the stored ones stay."""
    blobs = connect()
    first = blobs.create("a/b", [b"one"])
    assert blobs.create("a/b", [b"o", b"ne"]) == first
    error = error_of(Damaged, lambda: blobs.create("a/b", [b"two"]))
    assert "a/b" in error.path
    assert content(blobs, "a/b") == b"one"
    assert list(blobs.names()) == ["a/b"]


def check_the_missing_is_named(connect: Connect) -> None:
    """Reading what is not there raises Damaged; asking and deleting do not."""
    blobs = connect()
    for name in ("a", "a/b/c"):
        assert not blobs.exists(name)
        blobs.delete(name)
        assert name in error_of(Damaged, partial(content, blobs, name)).path


def check_deleted_is_gone(connect: Connect) -> None:
    """A deleted blob is not there, and its name is free again."""
    blobs = connect()
    blobs.create("a/b", [b"one"])
    blobs.delete("a/b")
    assert not blobs.exists("a/b")
    assert list(blobs.names()) == []
    blobs.create("a/b", [b"two"])
    assert content(blobs, "a/b") == b"two"


def check_names_are_sorted_and_filtered(connect: Connect) -> None:
    """Names come in the order of their text; a prefix need not end at a slash."""
    blobs = connect()
    names = ["a-b/x", "a.b", "a/b", "a/c/d", "a/c/e", "a=b", "ab", "b"]
    for name in reversed(names):
        blobs.create(name, [name.encode()])
    assert list(blobs.names()) == sorted(names) == names
    assert list(blobs.names("a/")) == ["a/b", "a/c/d", "a/c/e"]
    assert list(blobs.names("a/c/e")) == ["a/c/e"]
    assert list(blobs.names("a")) == names[:-1]
    assert list(blobs.names("nothing")) == []


def check_bad_names_are_refused(connect: Connect) -> None:
    """A name that could lead elsewhere is refused by every method, before anything happens."""
    blobs = connect()
    for name in BAD_NAMES:
        error_of(UsageInvalid, partial(blobs.create, name, [b"x"]))
        error_of(UsageInvalid, partial(content, blobs, name))
        for call in (blobs.exists, blobs.delete, blobs.location):
            error_of(UsageInvalid, partial(call, name))
    assert list(blobs.names()) == []


def check_a_failed_upload_leaves_nothing(connect: Connect) -> None:
    """When the bytes stop coming, no blob appears."""
    blobs = connect()

    def broken() -> Iterator[bytes]:
        yield b"some"
        raise EOFError

    try:
        blobs.create("a/b", broken())
    except EOFError:
        assert not blobs.exists("a/b")
        assert list(blobs.names()) == []
        return
    raise AssertionError("the sender's error was swallowed")


def check_pieces_become_a_blob_when_they_are_finished(connect: Connect) -> None:
    """Nothing is seen before; what is abandoned leaves nothing; abandoning behind it is nothing."""
    blobs = connect()
    writer = blobs.begin("a/b")
    writer.write(b"x" * 100000)
    writer.write(b"")
    writer.write(b"yz")
    assert not blobs.exists("a/b")
    assert list(blobs.names()) == []
    info = writer.finish()
    writer.abandon()
    data = b"x" * 100000 + b"yz"
    assert (info.size, info.checksum) == (len(data), hashlib.sha256(data).hexdigest())
    assert content(blobs, "a/b") == data
    dropped = blobs.begin("a/c")
    dropped.write(b"z")
    dropped.abandon()
    dropped.abandon()
    assert list(blobs.names()) == ["a/b"]
    for name in BAD_NAMES:
        error_of(UsageInvalid, partial(blobs.begin, name))


def check_two_creators_agree(connect: Connect) -> None:
    """Of two creators of one name with other bytes, exactly one succeeds."""
    stores = [connect(), connect()]
    won: list[bytes] = []
    ready = threading.Barrier(2)

    def create(number: int) -> None:
        data = b"from %d" % number
        ready.wait(WAIT_S)
        try:
            stores[number].create("a/b", [data])
        except Damaged:
            return
        won.append(data)

    run_threads([lambda: create(0), lambda: create(1)])
    assert len(won) == 1
    assert content(stores[0], "a/b") == won[0]


CHECKS: tuple[Check, ...] = (
    check_bytes_come_back,
    check_a_name_is_never_given_twice,
    check_the_missing_is_named,
    check_deleted_is_gone,
    check_names_are_sorted_and_filtered,
    check_bad_names_are_refused,
    check_a_failed_upload_leaves_nothing,
    check_pieces_become_a_blob_when_they_are_finished,
    check_two_creators_agree,
)
"""What every blob store passes."""
