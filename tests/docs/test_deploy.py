"""The examples of how to deploy name verbs and options that exist, and one user for all verbs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import typer

from holdfast.cli.main import app

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
UNIT, CONTAINER = DEPLOY / "holdfast.service", DEPLOY / "Containerfile"


def commands() -> Iterator[list[str]]:
    """Yield what is called of `holdfast`: by the two files, and by the comments in them."""
    unit, container = UNIT.read_text(), CONTAINER.read_text()
    (start,) = re.findall(r"^ExecStart=\S+/holdfast (.*)$", unit, re.MULTILINE)
    yield shlex.split(start)
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", container, re.MULTILINE)
    assert json.loads(entry) == ["holdfast"]
    (start,) = re.findall(r"^CMD (.*)$", container, re.MULTILINE)
    yield json.loads(start)
    for line in re.findall(
        r"^# .*(?:-- \S+/|CONTAINER )holdfast (.*)$", unit + container, re.MULTILINE
    ):
        yield shlex.split(line)


def test_the_examples_name_verbs_and_options_that_exist() -> None:
    found = list(commands())
    assert [words[0] for words in found] == ["up", "up", "client", "status", "client"]
    for words in found:
        command = typer.main.get_command(app)
        while subcommands := getattr(command, "commands", {}):
            command = subcommands[words.pop(0)]
        known = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("--")} <= known, command.name


def test_every_verb_is_run_as_the_user_of_the_service() -> None:
    """A secret that root makes below the state is closed to a service of another user."""
    unit = UNIT.read_text()
    (user,) = re.findall(r"^User=(\w+)$", unit, re.MULTILINE)
    assert "DynamicUser=" not in unit
    assert set(re.findall(r"runuser -u (\w+) --", unit)) == {user}
    assert f" {user}\n" in unit.split("useradd")[1].partition("\n")[0] + "\n"
