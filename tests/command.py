"""The real door: `holdfast` as a process of its own, and what one clear line of error is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from holdfast.cli import look, run
from holdfast.cli.main import main

LOADED = (look, run)
"""Here once, and not by every forked child."""

ROOT = Path(__file__).parents[1]

SHOP = """\
from holdfast import Pipeline

pipe = Pipeline("shop", version="1")
pipe.input("sales", schema="shop string, amount int")


@pipe.result("all", streamed=True, order_by=["shop", "amount"])
def everything(sales):
    return sales
"""
"""A pipeline file: one table, all of whose rows are the result."""

_PROGRESS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \w")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and what it said on both channels."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line of error. All others tell of progress: no traceback, nothing of Java's."""
        lines = self.err.splitlines()
        errors = [line for line in lines if not _PROGRESS.match(line)]
        assert len(errors) == 1, self.err
        assert errors[0].startswith("holdfast: ["), self.err
        assert lines[-1] == errors[0], self.err
        return errors[0]

    def failed(self, code: str, *parts: str, exit_code: int = 1) -> None:
        """One line with this code that has these parts, the exit code, and no answer."""
        assert self.line.startswith(f"holdfast: [{code}] "), self.err
        for part in parts:
            assert part in self.line, self.err
        assert (self.code, self.out) == (exit_code, "")

    def succeeded(self) -> None:
        """The run was done."""
        assert self.code == 0, self.err
        assert self.out.startswith(("done: ", "this run was finished before: ")), self.out


class Command:
    """`holdfast run shop.py` in a directory that has `in/`; its results go to `out/`."""

    def __init__(self, root: Path, pipeline: str = SHOP) -> None:
        self.root = root
        self.state, self.out = root / "state", root / "out"
        self.prefix: tuple[str, ...] = ()
        (root / "in").mkdir(parents=True, exist_ok=True)
        (root / "shop.py").write_text(pipeline)

    def write(self, name: str, data: str | bytes) -> Path:
        """Write an input file."""
        path = self.root / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def run(self, *more: str, **environment: str) -> Ended:
        """Run to the end, or resume."""
        places = ("--input", "in", "--out", str(self.out), "--state", str(self.state))
        return self("run", "shop.py", *places, *more, **environment)

    def path(self) -> str:
        """Return where Python looks for modules: in this repository too."""
        return os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    def __call__(self, *arguments: str, **environment: str) -> Ended:
        """Run any command. Its pipeline file may import what tests share."""
        done = subprocess.run(
            [*self.prefix, sys.executable, "-m", "holdfast.cli", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": self.path(), **environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)


class QuickCommand(Command):
    """The same entry point in a forked child of this process, which has loaded everything.

    A tenth of the time of a new interpreter. For commands that end before Spark does work.
    """

    def __call__(self, *arguments: str, **environment: str) -> Ended:
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            pid = os.fork()
            if pid == 0:
                self._become(arguments, environment, out.fileno(), err.fileno())
            _, status = os.waitpid(pid, 0)
            out.seek(0)
            err.seek(0)
            return Ended(os.waitstatus_to_exitcode(status), out.read(), err.read())

    def _become(
        self, arguments: tuple[str, ...], environment: dict[str, str], out: int, err: int
    ) -> NoReturn:
        code = 70
        try:
            os.dup2(out, 1)
            os.dup2(err, 2)
            # pytest put its own in their place.
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ.update({"PYTHONPATH": self.path(), **environment})
            os.chdir(self.root)
            sys.argv = ["holdfast", *arguments]
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # a child must never return into the tests
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
