"""`holdfast dry-run`: what the paid steps of a pipeline would buy. Spark runs in this process."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from holdfast.cli.run import with_format
from holdfast.intake.listing import list_tables
from holdfast.spark.dry_run import DryRuns
from holdfast.spark.load import load_pipeline


def dry_run_command(pipeline: str, folder: Path, fmt: str | None, *, as_json: bool) -> None:
    """Count rows, recorded answers and calls to be made, and say what they may cost."""
    loaded = load_pipeline(pipeline)
    spec = with_format(loaded.spec(), fmt)
    files = list_tables(folder.resolve(), spec.tables)
    from holdfast.spark.dry_pipeline import dry_run_pipeline
    from holdfast.spark.session import build_session

    with tempfile.TemporaryDirectory(prefix="holdfast-dry-run-") as scratch:
        spark = build_session(
            master=None,
            app_name=f"holdfast dry-run {spec.name}",
            conf={},
            log_file=Path(scratch, "spark.log"),
            short=True,
        )
        try:
            runs = dry_run_pipeline(loaded, spec, files, spark)
        finally:
            spark.stop()
    run = f"holdfast run {shlex.quote(pipeline)} --input {shlex.quote(str(folder))}"
    _tell(runs, f"{run} --out ... --state ...", as_json=as_json)


def _tell(runs: DryRuns, next_step: str, *, as_json: bool) -> None:
    if as_json:
        known = [asdict(run) for run in runs.known]
        sys.stdout.write(json.dumps({"steps": known, "not_known": runs.unknown}) + "\n")
        return
    for run in runs.known:
        sys.stdout.write(f"{run}\n")
    for step, after in runs.unknown.items():
        sys.stdout.write(f"{step}: not known before {after} is bought\n")
    if not runs.known:
        sys.stdout.write("no paid step\n")
    sys.stdout.write(f"next: {next_step}\n")
