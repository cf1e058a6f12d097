"""`holdfast results`: the results of a finished run as files, each checksum verified."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast._base.files import os_errors
from holdfast.cli.remote import Server, connected
from holdfast.cli.words import counted, size_of


def results_command(run: str, server: Server, out: Path, *, as_json: bool) -> None:
    """Write the results of a run to a directory, or what is missing of them."""
    with connected(server) as client:
        files = client.download(run, out)
    if as_json:
        facts = {"run": run, "results": {name: str(path) for name, path in files.items()}}
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    sys.stdout.write(f"{fetched(files, out)}\n")


def fetched(files: Mapping[str, Path], out: Path) -> str:
    """Return what was written, in a line."""
    with os_errors(out):
        found = (one for path in files.values() for one in (path, *path.glob("*")))
        size = sum(one.stat().st_size for one in found if one.is_file())
    return f"{counted(len(files), 'result')}, {size_of(size)}, in {out}; all checksums are right"
