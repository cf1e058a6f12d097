"""Engines as real processes on one state: killed at every crash point, stopped, woken, drained."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from tests.service.floor import SMALL, check, make_pipeline, open_state, run_id_of, states
from tests.service.processes import Process, until
from tests.unit.plain_runs import rows_of

from holdfast.engine.state import share
from holdfast.store.contract import Store
from holdfast.store.leases import ENGINE_RESOURCE, owner_pid
from holdfast.store.rows import RunState

CLIENTS = ("north", "south", "west")
LEASE_POINTS = ("lease.take.before", "lease.take.after")
POINTS = (
    "engine.plan.before",
    "engine.plan.after",
    "engine.attempt.after",
    "engine.job.after",
    "engine.series.after",
    "engine.sync.after",
    "engine.commit.after",
    "engine.fail.before",
    "engine.fail.after",
    "store.transaction.before",
    "store.transaction.after",
)
Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Process] = []

    def one(state: Path, *more: str, **environment: str) -> Process:
        arguments = ("tests.service.plain_engine", str(state), *more)
        started.append(Process(*arguments, **environment))
        return started[-1]

    yield one
    for process in started:
        process.end()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    open_state(root, CLIENTS)
    return root


def all_complete(store: Store) -> bool:
    return set(states(store).values()) == {RunState.COMPLETING}


def check_all(state: Path) -> None:
    with share(state, SMALL, part="test", spec=make_pipeline().spec()) as shared:
        for client in CLIENTS:
            check(state, shared.store, client)


def wait_for_all(state: Path) -> None:
    with share(state, SMALL, part="test", spec=make_pipeline().spec()) as shared:
        until("all runs are complete", lambda: all_complete(shared.store))


def stop_between_transactions(process: Process, state: Path) -> None:
    """Stop a process, but not in a beat: nobody could write until it wakes, nor take over."""

    def stopped() -> bool:
        process.signal(signal.SIGSTOP)
        stat = Path(f"/proc/{process.pid}/stat")
        until("it stands still", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        connection = apsw.Connection(str(state / "store.sqlite3"))
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            process.signal(signal.SIGCONT)
            return False
        finally:
            connection.close()
        return True

    until("it is stopped and holds nothing", stopped)


@pytest.mark.parametrize("hit", [1, 4])
@pytest.mark.parametrize("point", POINTS)
def test_an_engine_killed_anywhere_changes_no_answer(
    state: Path, start: Start, point: str, hit: int
) -> None:
    """Several runs are under way when it dies; the next one needs no patience."""
    (state / "fails").write_text("")
    first = start(state, HOLDFAST_CRASH=f"{point}:{hit}")
    assert first.wait() == -signal.SIGKILL, first.text
    second = start(state)
    wait_for_all(state)
    assert not second.said("standing by")
    second.signal(signal.SIGTERM)
    assert second.wait() == 0, second.text
    check_all(state)


@pytest.mark.parametrize("point", LEASE_POINTS)
def test_a_standby_killed_while_it_takes_over(state: Path, start: Start, point: str) -> None:
    """The active one dies, its successor dies taking over, the next one needs no patience."""
    active = start(state)
    active.until_said("active, epoch 1")
    standby = start(state, HOLDFAST_CRASH=point)
    standby.until_said("standing by")
    active.end()
    assert standby.wait() == -signal.SIGKILL, standby.text
    third = start(state)
    third.until_said("active, epoch")
    assert not third.said("standing by")
    wait_for_all(state)
    check_all(state)


def test_a_stopped_engine_is_replaced_and_fenced_when_it_wakes(
    state: Path, start: Start, tmp_path: Path
) -> None:
    """It is stopped in the middle of works; when it wakes they end, and change nothing."""
    gate = tmp_path / "gate"
    gate.mkdir()
    stopped = start(state, str(gate))
    until("works are under way", lambda: len(list(gate.iterdir())) == SMALL.works_at_once)
    stop_between_transactions(stopped, state)
    successor = start(state)
    successor.until_said("standing by")
    wait_for_all(state)
    check_all(state)
    before = rows_of(state.parent)
    (gate / "open").write_text("")
    stopped.signal(signal.SIGCONT)
    stopped.until_said("another engine took over")
    stopped.until_said("standing by")
    assert rows_of(state.parent) == before
    with share(state, SMALL, part="test") as shared:
        lease = shared.store.read_lease(ENGINE_RESOURCE)
        assert lease is not None
        assert owner_pid(lease) == successor.pid
    successor.end()
    until("the woken one takes over at once", lambda: stopped.text.count("active, epoch") == 2)
    check_all(state)


def test_an_engine_that_wakes_inside_a_work_commits_nothing_of_it(
    state: Path, start: Start, tmp_path: Path
) -> None:
    """Its successor is at the same works and has committed none of them: the fence alone refuses
    what it had begun and now ends.
    """
    gates = [tmp_path / "first", tmp_path / "second"]
    for gate in gates:
        gate.mkdir()

    def at(gate: Path) -> set[str]:
        return {mark.name for mark in gate.iterdir()} - {"open"}

    stopped = start(state, str(gates[0]))
    until("works are under way", lambda: len(at(gates[0])) == SMALL.works_at_once)
    stop_between_transactions(stopped, state)
    successor = start(state, str(gates[1]))
    until("it is at them too", lambda: at(gates[1]) == at(gates[0]))
    before = rows_of(state.parent)
    assert before["file"] == [], "nothing is committed"
    (gates[0] / "open").write_text("")
    stopped.signal(signal.SIGCONT)
    stopped.until_said("another engine took over")
    stopped.until_said("standing by")
    assert rows_of(state.parent) == before
    (gates[1] / "open").write_text("")
    wait_for_all(state)
    check_all(state)
    assert not successor.said("took over")


def test_one_is_active_and_the_others_stand_by(state: Path, start: Start) -> None:
    engines = [start(state) for _ in range(3)]
    wait_for_all(state)
    until(
        "two stand by",
        lambda: sum(engine.said("standing by") for engine in engines) == 2,
    )
    active = [engine for engine in engines if engine.said("active, epoch")]
    assert len(active) == 1
    check_all(state)


def test_a_signal_drains_and_a_second_one_ends_at_once(
    state: Path, start: Start, tmp_path: Path
) -> None:
    """Works under way are finished and nothing else is begun; a second signal waits for none."""
    gate = tmp_path / "gate"
    gate.mkdir()
    engine = start(state, str(gate))
    until("works are under way", lambda: len(list(gate.iterdir())) == SMALL.works_at_once)
    engine.signal(signal.SIGTERM)
    engine.until_said("stopping")
    (gate / "open").write_text("")
    assert engine.wait() == 0, engine.text
    with share(state, SMALL, part="test") as shared:
        committed = [
            work
            for client in CLIENTS
            for work in shared.store.list_work(run_id_of(client), committed=True)
        ]
    assert len(committed) == SMALL.works_at_once
    (gate / "open").unlink()
    for mark in gate.iterdir():
        mark.unlink()
    engine = start(state, str(gate))
    until("works are under way", lambda: len(list(gate.iterdir())) == SMALL.works_at_once)
    engine.signal(signal.SIGTERM)
    engine.until_said("stopping")
    engine.signal(signal.SIGTERM)
    assert engine.wait(5.0) == 130, engine.text
    start(state)
    wait_for_all(state)
    check_all(state)
