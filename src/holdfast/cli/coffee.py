"""`holdfast coffee`: the bundled application's data, and its answers by another way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast._base.files import os_errors
from holdfast.cli.words import counted, size_of

app = typer.Typer(
    help="Data for the bundled coffee-shop pipeline, and its right answers.",
    rich_markup_mode=None,
)

Scale = Annotated[float, typer.Option(help="Size of the data; 1 is 3.3 GB.")]
Seed = Annotated[int, typer.Option(help="Seed of the data.")]
Hard = Annotated[bool, typer.Option(help="Add every edge case.")]
Out = Annotated[Path, typer.Option(help="New or empty directory to write to.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command()
def generate(
    out: Out, scale: Scale = 0.01, seed: Seed = 1, hard: Hard = False, as_json: Json = False
) -> None:
    """Write the seven tables as CSV files.

    Example: holdfast coffee generate --scale 0.01 --seed 1 --out data
    """
    from holdfast.apps.coffee.generator import generate as make
    from holdfast.errors import UsageInvalid

    try:
        with os_errors(out):
            made = make(out, scale=scale, seed=seed, hard=hard)
    except ValueError as error:
        raise UsageInvalid(what=str(error), remedy="Nothing was written.") from error
    files, size = len(list(made.files)), sum(path.stat().st_size for path in out.iterdir())
    if as_json:
        sys.stdout.write(json.dumps({"out": str(out), "files": files, "bytes": size}) + "\n")
        return
    sys.stdout.write(f"wrote {counted(files, 'file')}, {size_of(size)}, to {out}\n")
    sys.stdout.write(f"next: holdfast run coffee --input {out} --out answers --state state\n")


@app.command()
def oracle(
    out: Out, scale: Scale = 0.01, seed: Seed = 1, hard: Hard = False, as_json: Json = False
) -> None:
    """Write the five right answers, computed by the generator itself, without Spark.

    Example: holdfast coffee oracle --scale 0.01 --seed 1 --out right
    """
    from holdfast.apps.coffee.oracle import answers, write_answers
    from holdfast.errors import UsageInvalid

    try:
        found = answers(scale=scale, seed=seed, hard=hard)
        with os_errors(out):
            write_answers(found, out)
    except ValueError as error:
        raise UsageInvalid(what=str(error), remedy="Nothing was written.") from error
    if as_json:
        sys.stdout.write(json.dumps({"out": str(out), "q1_rows": found.q1_count}) + "\n")
        return
    sys.stdout.write(f"wrote the answers to {out}; q1 has {counted(found.q1_count, 'row')}\n")
    sys.stdout.write(f"next: diff -r {out} answers\n")
