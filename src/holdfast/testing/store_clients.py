"""The store's contract suite, fourth part: clients, tokens, and the runs that clients create."""

from __future__ import annotations

from dataclasses import replace

from holdfast._base.ids import RunId
from holdfast.config import DEFAULT
from holdfast.errors import RunClosed, RunGone, UsageInvalid
from holdfast.store.client_rows import (
    Client,
    ClientUse,
    Opening,
    OpeningFacts,
    Quotas,
    Standing,
    Token,
)
from holdfast.store.contract import ENGINE_GROUP, Store, ingress_topic
from holdfast.store.rows import Chunk, ChunkFacts, End, RunState, Taken
from holdfast.testing.expect import error_of, run_threads
from holdfast.testing.store_samples import (
    RUN,
    Check,
    Connect,
    Scene,
    announce,
    bind,
    chunk,
    complete,
    new_run,
)

_DECLARATION = '{"kind":"spark","senders":{}}'


def create(opening: Opening, facts: OpeningFacts) -> bool:
    """Create what is not there."""
    del opening
    return facts.stored is None


def open_run(store: Store, client: str = "north", key: str = "k", run_id: RunId = RUN) -> bool:
    """Create a run of a client, as the gateway does."""
    run = replace(new_run(run_id=run_id), client=client)
    return store.open_client_run(run, Opening(client, key, _DECLARATION), create)


def check_a_client_is_known_by_its_tokens(connect: Connect) -> None:
    """A name is given once; a token leads to its client, with its quotas; others to nobody."""
    store = connect()
    north = Client("north", weight=3, quotas=Quotas(open_runs=2, stored_bytes=10**12))
    assert store.add_client(north, Token("t1", "sum-1"))
    assert not store.add_client(Client("north"), Token("t2", "sum-2"))
    assert store.add_client(Client("east"), Token("t3", "sum-3"))
    login = store.find_login("t1")
    assert login is not None
    assert login.checksum == "sum-1"
    assert replace(login.client, created_ms=0) == north
    assert store.find_login("t2") is None
    assert store.find_login("") is None
    assert store.read_client("north") == login.client
    assert store.read_client("west") is None
    assert [one.client for one in store.list_clients()] == ["east", "north"]


def check_a_replaced_token_ends_at_once_or_after_its_grace(connect: Connect) -> None:
    """Without grace the old one is gone; with it, it lasts for so long of served time."""
    store = connect()
    store.add_client(Client("north"), Token("t1", "a"))
    assert store.rotate_token("north", Token("t2", "b"), grace_ms=0)
    assert store.find_login("t1") is None
    assert store.find_login("t2") is not None
    count = store.age_tokens(10**6, seen=store.age_tokens(0, seen=-1))
    assert store.find_login("t2") is not None, "a token that nobody replaced has no end"
    store.rotate_token("north", Token("t3", "c"), grace_ms=1000)
    assert store.find_login("t2") is not None
    count = store.age_tokens(400, seen=count)
    store.rotate_token("north", Token("t4", "d"), grace_ms=5000)
    count = store.age_tokens(599, seen=count)
    assert store.find_login("t2") is not None
    store.age_tokens(1, seen=count)
    assert store.find_login("t2") is None, "a later rotation does not lengthen an older grace"
    assert store.find_login("t3") is not None
    assert store.read_use("north").tokens == 2
    assert not store.rotate_token("west", Token("t9", "x"), grace_ms=0)


def check_a_second_that_two_count_is_counted_once(connect: Connect) -> None:
    """Several serve, and each offers the same time: a grace is as long as with one."""
    store, other = connect(), connect()
    store.add_client(Client("north"), Token("t1", "a"))
    store.rotate_token("north", Token("t2", "b"), grace_ms=1000)
    seen = [store.age_tokens(0, seen=-1), other.age_tokens(10**6, seen=-1)]
    assert seen[0] == seen[1], "who has not seen the count yet only looks"
    for _ in range(9):
        seen = [one.age_tokens(100, seen=at) for one, at in zip((store, other), seen, strict=True)]
    assert store.find_login("t1") is not None
    assert other.age_tokens(100, seen=seen[1]) == seen[1] + 100, "who goes on alone counts"
    assert store.find_login("t1") is None


def check_a_revoked_client_has_no_token(connect: Connect) -> None:
    """All of its tokens end at once, also those in grace; its runs stay; another token revives."""
    store = connect()
    store.add_client(Client("north"), Token("t1", "a"))
    store.add_client(Client("east"), Token("t2", "b"))
    open_run(store)
    store.rotate_token("north", Token("t3", "c"), grace_ms=10**6)
    assert store.revoke_client("north")
    assert [store.find_login(one) for one in ("t1", "t3")] == [None, None]
    assert store.find_login("t2") is not None
    found = store.read_client("north")
    assert found is not None
    assert found.revoked
    assert store.read_client_run("north", RUN) is not None
    assert not store.revoke_client("west")
    store.rotate_token("north", Token("t4", "d"), grace_ms=0)
    assert store.find_login("t4") is not None


def check_a_client_creates_a_run_once(connect: Connect) -> None:
    """The rule sees what was created before; a run that is created has its senders and topics."""
    store = connect()
    store.add_client(Client("north"), Token("t1", "a"))
    seen: list[OpeningFacts] = []

    def rule(opening: Opening, facts: OpeningFacts) -> bool:
        seen.append(facts)
        return create(opening, facts)

    run = replace(new_run(), client="north")
    assert store.open_client_run(run, Opening("north", "k", _DECLARATION), rule)
    assert not store.open_client_run(run, Opening("north", "k", "{}"), rule)
    stored = Opening("north", "k", _DECLARATION)
    assert seen == [OpeningFacts(None, False, 0), OpeningFacts(stored, False, 1)]
    found = store.read_client_run("north", RUN)
    assert found is not None
    assert (found.opening, found.run.state) == (stored, RunState.OPEN)
    assert [sender.table for sender in store.read_progress(RUN)] == ["t"]
    assert store.list_offsets(ingress_topic(RUN, 1), 0) == {ENGINE_GROUP: 0}


def check_a_refused_creation_leaves_nothing(connect: Connect) -> None:
    """The rule's error undoes all of it."""
    store = connect()
    store.add_client(Client("north"), Token("t1", "a"))

    def refuse(opening: Opening, facts: OpeningFacts) -> bool:
        del opening, facts
        raise UsageInvalid(what="no", remedy="no")

    run = replace(new_run(), client="north")
    error_of(
        UsageInvalid,
        lambda: store.open_client_run(run, Opening("north", "k", _DECLARATION), refuse),
    )
    assert store.list_runs() == []
    assert store.list_topics() == {}


def check_two_creations_at_once_make_one_run(connect: Connect) -> None:
    """A client that lost the answer asks again while the first request is still under way."""
    store = connect()
    store.add_client(Client("north"), Token("t1", "a"))
    made: list[bool] = []
    run_threads([lambda: made.append(open_run(connect())) for _ in range(4)])
    assert sorted(made) == [False, False, False, True]


def check_a_run_is_found_by_its_client_only(connect: Connect) -> None:
    """Whatever another client asks about it, it is not there; lists are apart, and have pages."""
    store = connect()
    for name in ("north", "east"):
        store.add_client(Client(name), Token(f"t-{name}", name))
    runs = [RunId(f"run-{number}") for number in range(1, 4)]
    for run_id in runs:
        open_run(store, key=run_id, run_id=run_id)
    open_run(store, client="east", run_id=RunId("run-e"))
    assert store.read_client_run("east", runs[0]) is None
    assert store.look_at_chunk("east", runs[0], chunk(1)) is None
    assert store.cancel_run("east", runs[0]) is None
    assert [one.run.state for one in store.list_client_runs("north", count=9)] == ["OPEN"] * 3

    def listed(after: RunId | None, count: int) -> list[RunId]:
        found = store.list_client_runs("north", after=after, count=count)
        return [one.run.run_id for one in found]

    assert listed(None, 2) == runs[:2]
    assert listed(runs[1], 2) == runs[2:]
    assert listed(RunId("run-e"), 9) == runs, "another client's run is no place to go on from"


def check_a_look_tells_what_binding_will_see(connect: Connect) -> None:
    """The facts are those of the binding, before the bytes are there; and they count chunks."""
    store = connect()
    store.add_client(Client("north"), Token("t1", "a"))
    open_run(store)
    before = store.look_at_chunk("north", RUN, chunk(1))
    assert before is not None
    assert (before.facts.stored, before.facts.declared, before.run_chunks) == (None, True, 0)
    store.bind_chunk(RUN, chunk(1), bind)
    after = store.look_at_chunk("north", RUN, replace(chunk(1), location="", checksum="other"))
    assert after is not None
    assert (after.facts.stored, after.run_chunks, after.whole) == (chunk(1), 1, False)
    nobody = store.look_at_chunk("north", RUN, chunk(1, sender="nobody"))
    assert nobody is not None
    assert not nobody.facts.declared


def check_binding_sees_what_others_bound(connect: Connect) -> None:
    """On its own connection: two doors that saw the same room cannot both take the last of it."""
    store, other = connect(), connect()
    seen: list[Taken | None] = []

    def watch(_: Chunk, facts: ChunkFacts) -> bool:
        seen.append(facts.taken)
        return True

    store.create_run(new_run(run_id=RunId("nobody")))
    store.bind_chunk(RunId("nobody"), chunk(1, location="blob of nobody"), watch)
    store.add_client(Client("north", quotas=Quotas(run_chunks=5)), Token("t1", "a"))
    open_run(store)
    store.bind_chunk(RUN, chunk(1), watch)
    open_run(other, key="k2", run_id=RunId("run-2"))
    other.bind_chunk(RUN, chunk(2), watch)
    other.bind_chunk(RunId("run-2"), replace(chunk(1), location="blob of run-2"), watch)
    store.bind_chunk(RUN, chunk(3), watch)
    most = DEFAULT.client_stored_bytes
    had = ((0, 5, 0), (1, 5, 10), (0, 5, 20), (2, 5, 30))
    assert seen == [None, *(Taken(*one, most) for one in had)]


def check_use_counts_what_is_not_swept(connect: Connect) -> None:
    """Bytes count until their run is swept, open runs until they are closed."""
    store = connect()
    store.add_client(Client("north"), Token("t1", "a"))
    open_run(store)
    open_run(store, key="k2", run_id=RunId("run-2"))
    for ordinal in (1, 2):
        store.bind_chunk(RUN, chunk(ordinal), bind)
    assert store.read_use("north") == ClientUse(runs=2, open_runs=2, stored_bytes=20, tokens=1)
    assert store.read_use("east") == ClientUse(runs=0, open_runs=0, stored_bytes=0, tokens=0)
    assert store.read_standing() == Standing({"OPEN": 2}, without_end=2)
    store.record_end(RUN, End("t", "", 2), announce, complete)
    assert store.read_standing() == Standing({"OPEN": 2}, without_end=1)
    store.cancel_run("north", RUN)
    assert store.read_standing() == Standing({"CANCELLED": 1, "OPEN": 1}, without_end=1)
    assert store.read_use("north") == ClientUse(runs=2, open_runs=1, stored_bytes=20, tokens=1)
    fence = store.take_lease("delivery", "x")
    store.move_run(fence, RUN, expected="CANCELLED", to="SWEPT")
    assert store.read_use("north").stored_bytes == 0


def check_a_cancelled_run_takes_and_commits_nothing(connect: Connect) -> None:
    """Cancelling twice is the same; a run that ended otherwise is not cancelled; swept is gone."""
    store = connect()
    store.add_client(Client("client"), Token("t1", "a"))
    scene = Scene.of(store, bound=1)
    scene.plan("b1", chunk(1))
    for _ in range(2):
        run = store.cancel_run("client", RUN)
        assert run is not None
        assert run.state == RunState.CANCELLED
    error_of(RunGone, lambda: scene.commit("b1"))
    error_of(RunGone, lambda: store.bind_chunk(RUN, chunk(2), bind, complete))
    assert store.move_run(scene.fence, RUN, expected="CANCELLED", to="SWEPT")
    error_of(RunGone, lambda: store.cancel_run("client", RUN))
    other = RunId("run-2")
    open_run(store, "client", "k2", other)
    store.move_run(scene.fence, other, expected="OPEN", to="FAILED", error="x")
    error = error_of(RunClosed, lambda: store.cancel_run("client", other))
    assert (error.run, error.state) == (other, "FAILED")


CLIENTS: tuple[Check, ...] = (
    check_a_client_is_known_by_its_tokens,
    check_a_replaced_token_ends_at_once_or_after_its_grace,
    check_a_second_that_two_count_is_counted_once,
    check_a_revoked_client_has_no_token,
    check_a_client_creates_a_run_once,
    check_a_refused_creation_leaves_nothing,
    check_two_creations_at_once_make_one_run,
    check_a_run_is_found_by_its_client_only,
    check_a_look_tells_what_binding_will_see,
    check_binding_sees_what_others_bound,
    check_use_counts_what_is_not_swept,
    check_a_cancelled_run_takes_and_commits_nothing,
)
