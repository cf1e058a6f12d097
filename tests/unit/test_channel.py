"""Several works in one child process: answers in any order, and what its death does to each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.service.processes import until

from holdfast.engine.executor import BatchWork, Outcome
from holdfast.errors import HoldfastError, RunStopped, SparkLost, SparkNotStarted
from holdfast.spark import channel
from holdfast.spark.supervise import ChildExecutor
from holdfast.spark.wire import Start

CHILD = """\
import json, os, pathlib, socket, sys

# Answers a work when it hears "go" for as many as its directory says, last first; one whose
# directory says "die" ends the process, and one whose directory says "alone" says who is here.
channel = socket.socket(fileno=int(sys.argv[1]))
lines = channel.makefile("rb")
held, seen = [], pathlib.Path({seen!r})


def answer(request, **answer):
    answer = answer or {{"outcome": {{"rows": {{}}, "columns": []}}, "paid": []}}
    channel.sendall(json.dumps({{"id": request["id"], **answer}}).encode() + b"\\n")


for line in lines:
    request = json.loads(line)
    if "start" in request:
        answer(request, **{start})
        continue
    word = request["batch"]["directory"] if "batch" in request else "wait"
    with seen.open("a") as file:
        file.write(f"{{word}} {{len(held)}}\\n")
    if word == "die":
        os.kill(os.getpid(), 9)
    elif word.startswith("hold"):
        held.append(request)
        if len(held) == int(word.removeprefix("hold")):
            for one in reversed(held):
                answer(one, outcome={{"rows": {{"t": one["id"]}}, "columns": []}}, paid=[])
            held.clear()
    elif word == "wait":
        held.append(request)
    else:
        answer(request)
"""
Make = Callable[..., ChildExecutor]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Make]:
    made: list[ChildExecutor] = []

    def one(start: str = '{"ready": True}') -> ChildExecutor:
        text = CHILD.format(seen=str(tmp_path / "seen"), start=start)
        (tmp_path / "child.py").write_text(text)
        command = (sys.executable, str(tmp_path / "child.py"))
        monkeypatch.setattr(channel, "COMMAND", command)
        made.append(ChildExecutor(Start("p", str(tmp_path / "log"), at_once=4), 2))
        return made[-1]

    yield one
    for executor in made:
        executor.close()


def work(word: str) -> BatchWork:
    return BatchWork(word, 1, {}, {}, 9)


def at_once(executor: ChildExecutor, *words: str) -> list[Outcome | HoldfastError]:
    """Hand in works from a thread each; return what each of them got."""
    found: dict[int, Outcome | HoldfastError] = {}

    def ask(place: int, word: str) -> None:
        try:
            found[place] = executor.run_batch(work(word))
        except HoldfastError as error:
            found[place] = error

    threads = [threading.Thread(target=ask, args=one) for one in enumerate(words)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return [found[place] for place in range(len(words))]


def seen(tmp_path: Path) -> list[str]:
    path = tmp_path / "seen"
    return path.read_text().splitlines() if path.exists() else []


def test_answers_find_who_asked_in_any_order(make: Make) -> None:
    outcomes = at_once(make(), "hold3", "hold3", "hold3")
    ids = sorted(one.rows["t"] for one in outcomes if isinstance(one, Outcome))
    assert ids == [1, 2, 3]


def lose_in_company(executor: ChildExecutor, tmp_path: Path) -> list[Outcome | HoldfastError]:
    """Have two works under way, and a third that ends the process; return what the two got."""
    found: list[Outcome | HoldfastError] = []
    thread = threading.Thread(target=lambda: found.extend(at_once(executor, "wait", "wait")))
    thread.start()
    until("both are under way", lambda: len(seen(tmp_path)) == 2)
    with pytest.raises(SparkLost):
        executor.run_batch(work("die"))
    thread.join(20)
    (tmp_path / "seen").write_text("")
    return found


def test_a_death_is_one_failed_attempt_of_each_work_under_way(make: Make, tmp_path: Path) -> None:
    executor = make()
    lost = lose_in_company(executor, tmp_path)
    assert [type(one) for one in lost] == [SparkLost, SparkLost]
    assert "signal 9" in str(lost[0])
    assert executor.run_batch(work("plain")) == Outcome()


def test_after_a_death_in_company_works_are_done_one_at_a_time(make: Make, tmp_path: Path) -> None:
    """So that a work that kills the process does it alone; then they go side by side again."""
    executor = make()
    lose_in_company(executor, tmp_path)
    first = threading.Thread(target=lambda: at_once(executor, "wait"))
    first.start()
    until("it is under way", lambda: seen(tmp_path) == ["wait 0"])
    second = threading.Thread(target=lambda: at_once(executor, "plain"))
    second.start()
    second.join(0.3)
    assert second.is_alive(), "it waits for the first"
    executor.kill()
    first.join(20)
    second.join(20)
    assert seen(tmp_path) == ["wait 0", "plain 0"]
    for _ in range(2):
        executor.run_batch(work("plain"))
    assert all(isinstance(one, Outcome) for one in at_once(executor, "hold2", "hold2"))


def test_one_that_was_not_sent_has_no_failed_attempt(make: Make, tmp_path: Path) -> None:
    """Of works done one at a time, the one that kills the process fails alone."""
    executor = make()
    lose_in_company(executor, tmp_path)
    found = at_once(executor, "plain", "die", "plain")
    assert [type(one) for one in found] == [Outcome, SparkLost, Outcome]


def test_what_keeps_it_from_starting_reaches_everybody(make: Make) -> None:
    text = SparkNotStarted(error="no", log="/log").wire_text()
    executor = make(start=f'{{"error": {text!r}}}')
    outcomes = at_once(executor, "plain", "plain")
    assert [type(one) for one in outcomes] == [SparkNotStarted, SparkNotStarted]


def test_abort_interrupts_what_is_under_way(make: Make, tmp_path: Path) -> None:
    """It counts for nothing: the same plan is done again by the next process."""
    executor = make()
    executor.run_batch(work("plain"))
    found: list[Outcome | HoldfastError] = []
    thread = threading.Thread(target=lambda: found.extend(at_once(executor, "wait")))
    thread.start()
    until("it is under way", lambda: "wait 0" in seen(tmp_path))
    executor.stop()
    assert thread.is_alive(), "stop waits for what is under way"
    executor.abort()
    thread.join(20)
    assert [type(one) for one in found] == [RunStopped]
    with pytest.raises(RunStopped):
        executor.run_batch(work("plain"))


def test_a_stop_in_the_middle_of_a_check_is_no_loss(make: Make, tmp_path: Path) -> None:
    """A signal soon after the start: the process ends as it was asked to."""
    executor = make()
    found: list[HoldfastError] = []

    def check() -> None:
        try:
            executor.check()
        except HoldfastError as error:
            found.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    until("it is under way", lambda: len(seen(tmp_path)) == 1)
    executor.stop()
    thread.join(20)
    assert [type(one) for one in found] == [RunStopped]
