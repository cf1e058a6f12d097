"""The client's verbs as people meet them: what is asked wrongly, and how far an upload is."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.command import QuickCommand

from holdfast._base.intervals import Intervals
from holdfast.cli.bar import LiveBar, words_of
from holdfast.cli.remote import Server
from holdfast.cli.watch import line_of, picture_of
from holdfast.client.answers import RunInfo, TableInfo
from holdfast.client.submit import Sent
from holdfast.testing.clock import VirtualClock

URL = "http://127.0.0.1:1"
SECRET = "canary-0123456789abcdef"


@pytest.fixture
def command(tmp_path: Path) -> QuickCommand:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    made = QuickCommand(tmp_path)
    made.write("sales.csv", "shop,amount\na,1\n")
    return made


def submit(command: QuickCommand, *more: str, url: str = URL, token: str = "token") -> str:
    ended = command("submit", "in", "--url", url, "--token-file", token, *more)
    assert SECRET not in ended.out + ended.err
    assert ended.out == ""
    return f"{ended.code} {ended.line}"


def test_what_is_asked_wrongly_is_one_line_and_exit_code_2(command: QuickCommand) -> None:
    wrong = {
        "no token file": submit(command, token="none"),
        "is no address": submit(command, url="127.0.0.1:8080"),
        "in clear": submit(command, url="http://example.org"),
        "--token-file": submit(command, url=f"http://me:{SECRET}@127.0.0.1"),
        "--chunk-bytes 0": submit(command, "--chunk-bytes", "0"),
        "there is no pipeline 'cofee'": submit(command, "--pipeline", "cofee"),
    }
    for part, line in wrong.items():
        assert line.startswith("2 holdfast: [USAGE_INVALID] "), line
        assert part in line


def test_sigterm_while_nobody_answers_says_how_to_go_on(command: QuickCommand) -> None:
    """The server takes the connection and says nothing. Exit code 130, as for every stop."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        arguments = ["watch", "r1", "--url", url, "--token-file", "token"]
        with (
            subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *arguments],
                cwd=command.root,
                stderr=subprocess.PIPE,
                text=True,
            ) as watching,
            silent.accept()[0] as taken,
        ):
            taken.recv(1)
            watching.send_signal(signal.SIGTERM)
            _, said = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert "[RUN_STOPPED]" in said
    assert f"Go on: holdfast {' '.join(arguments)}" in said


def info(state: str, *tables: TableInfo, idle_s: int = 0) -> RunInfo:
    return RunInfo("r1", "k", "shop", "spark", state, None, 1, 2, tables, idle_s)


def table(announced: int | None, received: int, missing: str = "none") -> TableInfo:
    return TableInfo("sales", "", announced, received, 1, Intervals.first(received), missing)


def test_a_run_in_one_line_says_who_has_not_said_end() -> None:
    assert line_of(info("OPEN", table(None, 2))) == (
        "OPEN: 2 chunks received, 1 applied; no END yet of sales"
    )
    assert line_of(info("DONE", table(2, 2))) == "DONE: 2 chunks received, 1 applied"


@pytest.mark.parametrize(
    ("idle_s", "told"), [(59, ""), (119, "1 min"), (3599, "59 min"), (7300, "2 h")]
)
def test_a_run_that_waits_for_an_end_says_for_how_long_nothing_came(idle_s: int, told: str) -> None:
    end = f"; nothing came for {told}" if told else ""
    waits = info("OPEN", table(None, 2), idle_s=idle_s)
    assert line_of(waits) == f"OPEN: 2 chunks received, 1 applied; no END yet of sales{end}"
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(picture_of(waits))
    assert console.export_text().splitlines()[0].rstrip() == f"run r1 of shop: OPEN{end}"
    assert "nothing" not in line_of(info("OPEN", table(2, 2), idle_s=idle_s))


def test_a_run_on_a_terminal_shows_what_is_missing() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(picture_of(info("OPEN", table(9, 2, "3-9"))))
    text = console.export_text()
    assert "run r1 of shop: OPEN" in text
    assert "3-9" in text


def sent(size: int, before: int = 0) -> Sent:
    return Sent(chunks=1, chunks_all=4, size=size, size_all=4_000_000, size_before=before)


def test_rate_and_rest_count_what_this_process_sent() -> None:
    assert words_of(sent(0), 0.0) == "sent 0 bytes of 4.0 MB (0%), 1 of 4 chunks"
    assert words_of(sent(2_000_000), 2.0).endswith("(50%), 1 of 4 chunks, 1.0 MB/s, 0:02 left")
    half = words_of(sent(3_000_000, before=2_000_000), 2.0)
    assert half.endswith("500.0 kB/s, 0:02 left")


def test_the_bar_is_drawn_where_somebody_watches() -> None:
    console = Console(width=100, force_terminal=True, record=True, file=io.StringIO())
    bar = LiveBar(VirtualClock(), console)
    bar(sent(1_000_000))
    bar.close()
    assert "sent 1.0 MB of 4.0 MB (25%)" in console.export_text()


def test_the_next_command_names_the_same_server() -> None:
    server = Server("https://h", Path("a token"), Path("ca.pem"), plain_http=True)
    assert server.words() == (
        "--url https://h --token-file 'a token' --ca-file ca.pem --plain-http"
    )
