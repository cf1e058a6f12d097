"""`holdfast`: the verbs, and how errors reach people: one line, and an exit code.

The codes: `holdfast.cli.exits`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup
from typer.main import get_command

from holdfast import __version__
from holdfast._base.crashpoint import arm_from_environment
from holdfast._base.files import os_errors
from holdfast._base.processes import die_with_supervisor
from holdfast._base.tell import tell
from holdfast.cli import calls, client, coffee, remote_verbs, router, served
from holdfast.cli.exits import exit_code, one_line
from holdfast.cli.gateway import gateway
from holdfast.errors import HoldfastError, UsageInvalid

app = typer.Typer(
    name="holdfast",
    help="Data pipelines on Spark that lose nothing, repeat nothing and buy nothing twice.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(coffee.app, name="coffee")
app.add_typer(calls.app, name="calls")
app.add_typer(client.app, name="client")
app.command()(gateway)
app.command()(served.up)
app.command()(served.engine)
app.command()(router.router)

State = Annotated[Path, typer.Option(help="Directory that holds the run's state.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Run = Annotated[str | None, typer.Argument(help="A run's id; default all, or the only one.")]
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="File with settings.",
        show_default="holdfast.toml, if it is there",
    ),
]
LogUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Log for references.", show_default="in the state"),
]
Master = Annotated[
    str | None, typer.Option(help="Where Spark runs.", show_default="local[*]: all cores here")
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A Spark setting; may be given again."),
]


def _pipelines(incomplete: str) -> list[str]:
    """Return what may be meant: bundled pipelines, and pipeline files below that directory."""
    from holdfast.spark.load import BUNDLED

    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    files = [str(path) for path in sorted(folder.glob("*.py"))]
    return [name for name in (*BUNDLED, *files) if name.startswith(incomplete)]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show version.")
    ] = False,
) -> None:
    del version


@app.command()
def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            help="A bundled name (coffee), module:object, or a .py file.",
            autocompletion=_pipelines,
        ),
    ],
    input: Annotated[Path, typer.Option(help="Directory with the input files.")],  # noqa: A002
    out: Annotated[Path, typer.Option(help="Directory for the result files.")],
    state: State,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            help="Format of the input files: csv, json or parquet.",
            show_default="as each input declares it",
        ),
    ] = None,
    config: ConfigPath = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    shared_state: Annotated[
        bool, typer.Option(help="Say that every machine of the cluster sees these directories.")
    ] = False,
    ignore_unknown: Annotated[
        bool, typer.Option(help="Leave files alone that belong to no table.")
    ] = False,
    batch_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Input of one Spark job.", show_default="64MiB"),
    ] = None,
    chunk_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size at which files are cut.", show_default="32MiB"),
    ] = None,
    log: LogUrl = None,
    log_format: Annotated[
        str | None,
        typer.Option(
            help="Progress as lines: text or json.",
            show_default="a live view on a terminal, else text",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a pipeline to the end, or resume it: same state, same inputs.

    Example: holdfast run coffee --input data --out answers --state state
    """
    from holdfast.cli.run import Request, run_command

    run_command(
        Request(
            pipeline=pipeline,
            input=input,
            out=out,
            state=state,
            format=format,
            config_file=config,
            master=master,
            spark_conf=tuple(spark_conf or ()),
            shared_state=shared_state,
            ignore_unknown=ignore_unknown,
            batch_bytes=batch_bytes,
            chunk_bytes=chunk_bytes,
            log=log,
            log_format=log_format,
            as_json=as_json,
        )
    )


@app.command(name="dry-run")
def dry_run(
    pipeline: Annotated[
        str, typer.Argument(help="A bundled name (coffee), module:object, or a .py file.")
    ],
    input: Annotated[Path, typer.Option(help="Directory with the input files.")],  # noqa: A002
    format: Annotated[  # noqa: A002
        str | None, typer.Option(help="Format of the input files: csv, json or parquet.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a pipeline's paid steps would buy, and about for how much. Buys nothing.

    Example: holdfast dry-run reviews.py --input data
    """
    from holdfast.cli.dry_run import dry_run_command

    dry_run_command(pipeline, input, format, as_json=as_json)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="Name of the project, and of its directory.")],
    as_json: Json = False,
) -> None:
    """Make a project: a pipeline, sample data, a test, a README. It runs as made.

    Example: holdfast init shop
    """
    from holdfast.cli.init import init_command

    init_command(name, as_json=as_json)


@app.command()
def doctor(
    state: Annotated[Path, typer.Option(help="Directory that is to hold a run's state.")] = Path(),
    config: ConfigPath = None,
    as_json: Json = False,
) -> None:
    """Look at this machine: Java, packages, disk, memory, settings. Exit code 1: something is red.

    Example: holdfast doctor --state state
    """
    from holdfast.cli.doctor import doctor_command

    doctor_command(state, config, as_json=as_json)


@app.command()
def status(state: State, run: Run = None, as_json: Json = False) -> None:
    """Show runs, tables and batches. Works with everything dead.

    Example: holdfast status --state state
    """
    from holdfast.cli.look import status_command

    status_command(state, run, as_json=as_json)


@app.command()
def barrier(state: State, run: Run = None, as_json: Json = False) -> None:
    """Show what a run's barrier waits for: who has not said END, which chunks are missing.

    Example: holdfast barrier --state state
    """
    from holdfast.cli.look import barrier_command

    barrier_command(state, run, as_json=as_json)


@app.command()
def gc(
    state: State,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    config: ConfigPath = None,
    as_json: Json = False,
) -> None:
    """Remove what no committed row refers to, spent log records, and runs whose time is over.

    Example: holdfast gc --state state --dry-run
    """
    from holdfast.cli.gc import gc_command

    gc_command(state, dry_run=dry_run, as_json=as_json, config_file=config)


@app.command()
def delivery(
    state: State,
    config: ConfigPath = None,
    amqp: served.Amqp = None,
    as_json: Json = False,
) -> None:
    """Deliver: finish runs, send notices, take external results, clean up. Several may be started;
    one is active, the others stand by.

    Example: holdfast delivery --state state
    """
    from holdfast.cli.delivery import delivery_command

    delivery_command(state, config, amqp=amqp, as_json=as_json)


@app.command()
def notices(
    state: State,
    revive: Annotated[
        bool, typer.Option("--revive", help="Let dead letters be sent again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List notices to webhooks that nobody has taken yet: waiting, or given up.

    Example: holdfast notices --state state --revive
    """
    from holdfast.cli.notices import notices_command

    notices_command(state, revive=revive, as_json=as_json)


@app.command()
def verify(
    state: State,
    out: Annotated[Path | None, typer.Option(help="Also check the result files here.")] = None,
    as_json: Json = False,
) -> None:
    """Check that every chunk has exactly one committed effect and every file is intact.

    Example: holdfast verify --state state --out answers
    """
    from holdfast.cli.look import verify_command

    verify_command(state, out, as_json=as_json)


@app.command()
def demo(
    what: Annotated[str, typer.Argument(help="coffee, or paid: calls that cost money.")] = "coffee",
    scale: Annotated[float, typer.Option(help="Size of the data; 1 is 3.3 GB.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Seed of the data.")] = 1,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="New directory to keep data, state and answers in.",
            show_default="a temporary one, removed",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate coffee-shop data, run it, kill it twice, resume, compare with the oracle.

    `demo paid`: 400 paid calls to a bundled provider, killed in the middle; its bill afterwards.

    Example: holdfast demo
    """
    from holdfast.cli.demo import demo_command
    from holdfast.cli.demo_paid import demo_paid_command

    if what == "paid":
        demo_paid_command(keep=keep)
        return
    if what != "coffee":
        raise UsageInvalid(what=f"there is no demo {what!r}", remedy="Use coffee or paid.")
    demo_command(scale=scale, seed=seed, keep=keep, as_json=as_json)


for verb in remote_verbs.VERBS:
    app.command()(verb)


def _app_main(arguments: list[str]) -> None:
    """Run the verb. A command line that does not parse is an error like any other."""
    command, path = get_command(app), "holdfast"
    # Straight to a verb's own help: on the way through the root's options Typer loads pydantic,
    # which takes longer than all the rest.
    while arguments[-1] == "--help" and isinstance(command, TyperGroup):
        if arguments[0] not in command.commands:
            break
        path, command = f"{path} {arguments[0]}", command.commands[arguments.pop(0)]
    try:
        code = command.main(arguments, prog_name=path, standalone_mode=False)
    except typer.TyperException as error:
        what, _, hint = error.format_message().rstrip(".").partition(". ")
        path = getattr(getattr(error, "ctx", None), "command_path", path)
        remedy = f"{hint} See: {path} --help".strip()
        raise UsageInvalid(what=what[:1].lower() + what[1:], remedy=remedy) from error
    sys.exit(code or 0)


@app.command()
def bench(
    scale: Annotated[float, typer.Option(help="Size of the data; 1 is 3.3 GB.")] = 0.01,
    rounds: Annotated[int, typer.Option(help="How often each side is run.")] = 5,
    dir: Annotated[  # noqa: A002
        Path | None, typer.Option(help="Directory on the disk to measure; default: the temporary.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure on this machine what safety costs: the coffee pipeline against plain PySpark.

    Example: holdfast bench --scale 0.01
    """
    from holdfast.cli.bench import bench_command

    bench_command(scale=scale, rounds=rounds, directory=dir, as_json=as_json)


def main() -> None:
    """Run the command line. Errors raised on purpose become one line and an exit code."""
    try:
        die_with_supervisor()
        arm_from_environment()
        # Whatever the machine refuses where nobody expected it is still one line.
        with os_errors("this command"):
            _app_main(sys.argv[1:] or ["--help"])
    except HoldfastError as error:
        tell(f"{one_line(error)}\n")
        sys.exit(exit_code(error))
