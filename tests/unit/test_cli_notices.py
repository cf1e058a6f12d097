"""`holdfast notices` and what `holdfast status` tells of notices and of runs that wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.delivery_scene import CLIENT, RUN, delivering

from holdfast._base.ids import RunId
from holdfast.cli.look import status_command
from holdfast.cli.notices import notices_command
from holdfast.config import Config
from holdfast.errors import UsageInvalid

HASTY = Config(notice_attempts_max=1, notice_timeout_s=1)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state with a dead letter, and a run that waits."""
    with delivering(tmp_path / "state", HASTY) as scene:
        scene.store.set_webhook(CLIENT, "http://127.0.0.1:1/")
        scene.open_run()
        fence = scene.store.take_lease("engine", "test")
        scene.store.move_run(fence, RUN, expected="OPEN", to="FAILED", error="why")
        scene.open_run(RunId("waits"))
        scene.run(4)
        assert scene.store.count_notices() == {"dead": 1}
    return tmp_path / "state"


def test_status_shows_dead_letters_and_who_waits_for_what(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status_command(state, None, as_json=False)
    said = capsys.readouterr().out
    assert "waiting: run waits of client acme for " in said
    assert "END of t" in said
    assert f"run.failed of run {RUN}, 1 failure, the last: ConnectError" in said
    assert f"holdfast notices --state {state} --revive" in said
    status_command(state, None, as_json=True)
    facts = json.loads(capsys.readouterr().out)
    assert [one["lacks"] for one in facts["waiting"]] == [["END of t"]]
    assert [one["run_id"] for one in facts["dead_letters"]] == [RUN]


def test_dead_letters_are_listed_and_revived(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notices_command(state, revive=False, as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert (listed["revived"], [one["state"] for one in listed["notices"]]) == (0, ["dead"])
    assert "body" not in listed["notices"][0]
    notices_command(state, revive=True, as_json=False)
    said = capsys.readouterr().out
    assert said.startswith("revived 1 dead letter\nwaiting: ")
    notices_command(state, revive=True, as_json=False)
    assert capsys.readouterr().out.startswith("revived 0 dead letters\nwaiting: ")


def test_a_directory_without_a_state_is_refused(tmp_path: Path) -> None:
    for revive in (False, True):
        with pytest.raises(UsageInvalid):
            notices_command(tmp_path, revive=revive, as_json=False)
    assert list(tmp_path.iterdir()) == []
