"""The command line: help that is quick, and mistakes that are one line and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.plain_runs import flip_byte, run_toy, tiny_pipeline, write_sales
from tests.unit.test_queries import open_run_with_gaps

from holdfast.cli.main import main
from holdfast.config import Config
from holdfast.engine.executor import BatchWork, SeriesWork
from holdfast.engine.state import hold

COMMANDS = [
    ("run",),
    ("init",),
    ("doctor",),
    ("status",),
    ("barrier",),
    ("verify",),
    ("gc",),
    ("demo",),
    ("bench",),
    ("submit",),
    ("watch",),
    ("results",),
    ("cancel",),
    ("coffee", "generate"),
    ("coffee", "oracle"),
    ("dry-run",),
    ("engine",),
    ("delivery",),
    ("notices",),
    ("gateway",),
    ("client", "add"),
    ("client", "list"),
    ("client", "rotate"),
    ("client", "revoke"),
    ("up",),
    ("router",),
    ("calls", "show"),
    ("calls", "retry"),
    ("calls", "forget"),
    ("calls", "export"),
]


class Ended:
    """How a command ended: its exit code, and what it said on both channels."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def one_line(self, code: str, *parts: str, exit_code: int) -> None:
        """Exactly one line on standard error, with the code and these parts; nothing on output."""
        assert self.err.count("\n") == 1, self.err
        assert self.err.startswith(f"holdfast: [{code}] ")
        assert "Traceback" not in self.err
        for part in parts:
            assert part in self.err
        assert self.out == ""
        assert self.code == exit_code


class Shell:
    """Runs the real entry point in this process, from a directory of its own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], root: Path
    ) -> None:
        self._monkeypatch, self._capsys, self.root = monkeypatch, capsys, root
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.chdir(root)

    def __call__(self, *arguments: str) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        out, err = self._capsys.readouterr()
        return Ended(code, out, err)

    def run(self, pipeline: str, *more: str) -> Ended:
        """Run a pipeline with directories that exist, or need not."""
        (self.root / "in").mkdir(exist_ok=True)
        places = ("--input", "in", "--out", "out", "--state", "state")
        return self("run", pipeline, *places, *more)


@pytest.fixture
def shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Shell:
    return Shell(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_has_an_example(shell: Shell, command: tuple[str, ...]) -> None:
    ended = shell(*command, "--help")
    assert ended.code == 0
    assert f"Example: holdfast {' '.join(command)}" in ended.out
    assert "--json" in ended.out
    assert ended.err == ""


def test_every_command_is_listed_here(shell: Shell) -> None:
    listed = {command[0] for command in COMMANDS}
    told = shell("--help").out.split("Commands:")[1]
    assert {line.split()[0] for line in told.splitlines() if line[:3].strip()} == listed
    for group in ("coffee", "calls"):
        told = shell(group, "--help").out.split("Commands:")[1]
        names = {command[1] for command in COMMANDS if command[0] == group}
        assert {line.split()[0] for line in told.splitlines() if line[:3].strip()} == names


def test_a_bench_of_nothing_is_refused_before_anything_is_measured(shell: Shell) -> None:
    ended = shell("bench", "--rounds", "0")
    ended.one_line("USAGE_INVALID", "--rounds 0", "at least one", exit_code=2)
    shell("bench", "--scale", "-1").one_line("USAGE_INVALID", "--scale -1", exit_code=2)
    shell("bench", "--scale", "nan").one_line("USAGE_INVALID", "--scale nan", exit_code=2)
    shell("bench", "--dir", "nowhere").one_line("STORAGE_FAILED", "nowhere", exit_code=1)
    assert list(shell.root.iterdir()) == []


HELP_ALONE = """
import json, sys, time
from holdfast.cli.main import main
from holdfast.config import Config
codes = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["holdfast", *command, "--help"]
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code)
heavy = {"pyspark", "py4j", "pandas", "numpy", "pyarrow", "apsw", "rich", "pydantic"}
heavy &= set(sys.modules)
print(json.dumps([codes, sorted(heavy), time.process_time()]))
"""


def test_help_loads_nothing_heavy_and_is_quick() -> None:
    """In a process of its own. Processor time, not the clock: other tests run at the same time."""
    commands = [(), ("coffee",), *COMMANDS]
    ended = subprocess.run(
        [sys.executable, "-c", HELP_ALONE, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
    )
    codes, heavy, seconds = json.loads(ended.stdout.splitlines()[-1])
    assert codes == [0] * len(commands)
    assert heavy == []
    assert seconds < 2.0


def test_the_installed_command_and_the_module_both_work() -> None:
    script = Path(sys.executable).parent / "holdfast"
    for command in ([str(script)], [sys.executable, "-m", "holdfast.cli"]):
        ended = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert ended.stdout.startswith("holdfast ")


def test_a_mistake_on_the_real_command_line_is_one_line(tmp_path: Path) -> None:
    """The same through a subprocess, with the exit code the shell sees."""
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "status", "--state", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    Ended(ended.returncode, ended.stdout, ended.stderr).one_line("USAGE_INVALID", exit_code=2)


def test_an_unknown_pipeline_offers_the_nearest_name(shell: Shell) -> None:
    shell.run("cofee").one_line("USAGE_INVALID", "'cofee'", "Did you mean coffee?", exit_code=2)
    shell.run("zzz").one_line("USAGE_INVALID", "'zzz'", "module:object", exit_code=2)
    assert not (shell.root / "state").exists()


def test_a_missing_pipeline_file_is_named(shell: Shell) -> None:
    shell.run("no/such.py").one_line("USAGE_INVALID", "no/such.py", exit_code=2)


def test_a_module_that_cannot_be_found_is_named(shell: Shell) -> None:
    shell.run("no_such_module_1:pipe").one_line("USAGE_INVALID", "no_such_module_1", exit_code=2)
    shell.run("holdfast.errors:pipe").one_line("USAGE_INVALID", "pipe", exit_code=2)


def test_a_syntax_error_is_shown_with_file_and_line(shell: Shell) -> None:
    path = shell.root / "cli_syntax.py"
    path.write_text("a = 1\nb = (\n\ndef f(:\n")
    shell.run("cli_syntax.py").one_line("USAGE_INVALID", f"{path}:", exit_code=2)
    path.write_text("def f(:\n")
    shell.run("cli_syntax.py").one_line("USAGE_INVALID", f"{path}:1", exit_code=2)


def test_a_pipeline_file_that_raises_is_shown_with_file_line_and_error(shell: Shell) -> None:
    path = shell.root / "cli_raises.py"
    path.write_text("import os\n\nraise RuntimeError('no luck')\n")
    wanted = (f"{path}:3", "RuntimeError", "no luck")
    shell.run("cli_raises.py").one_line("USAGE_INVALID", *wanted, exit_code=2)


def test_a_pipeline_file_that_raises_with_several_lines_is_still_one_line(shell: Shell) -> None:
    (shell.root / "cli_lines.py").write_text("raise RuntimeError('first\\nsecond')\n")
    shell.run("cli_lines.py").one_line("USAGE_INVALID", "first", exit_code=2)


def test_a_pipeline_file_that_exits_is_an_error_of_its_own(shell: Shell) -> None:
    (shell.root / "cli_exits.py").write_text("import sys\nsys.exit(0)\n")
    shell.run("cli_exits.py").one_line("USAGE_INVALID", "cli_exits.py", exit_code=2)


def test_a_pipeline_defined_wrongly_is_shown_as_such(shell: Shell) -> None:
    text = "from holdfast import Pipeline\npipe = Pipeline('p')\npipe.input('a')\n"
    (shell.root / "cli_wrong.py").write_text(text)
    shell.run("cli_wrong.py").one_line("PIPELINE_INVALID", "no schema", exit_code=2)


def test_a_pipeline_without_a_result_is_refused(shell: Shell) -> None:
    text = "from holdfast import Pipeline\npipe = Pipeline('p')\npipe.input('a', schema='x int')\n"
    (shell.root / "cli_resultless.py").write_text(text)
    shell.run("cli_resultless.py").one_line("PIPELINE_INVALID", "no result", exit_code=2)


def test_a_file_with_no_or_two_pipelines_asks_for_a_name(shell: Shell) -> None:
    (shell.root / "cli_none.py").write_text("a = 1\n")
    shell.run("cli_none.py").one_line("USAGE_INVALID", "0 pipelines", exit_code=2)
    text = "from holdfast import Pipeline\none = Pipeline('a')\ntwo = Pipeline('b')\n"
    (shell.root / "cli_two.py").write_text(text)
    shell.run("cli_two.py").one_line("USAGE_INVALID", "2 pipelines", "cli_two.py:one", exit_code=2)
    shell.run("cli_two.py:three").one_line("USAGE_INVALID", "three", exit_code=2)


def test_a_pipeline_file_called_like_a_loaded_module_is_not_called_empty(shell: Shell) -> None:
    """`json.py` is the user's file, not Python's module: read it, or say that the name is taken."""
    text = "from holdfast import Pipeline\npipe = Pipeline('p')\npipe.input('a')\n"
    (shell.root / "json.py").write_text(text)
    ended = shell.run("json.py")
    assert ended.code == 2
    assert ended.err.startswith("holdfast: [")
    assert "0 pipelines" not in ended.err


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--format", "xml"), ("'xml'", "csv, json, parquet")),
        (("--format", "CSV"), ("'CSV'",)),
        (("--spark-conf", "novalue"), ("novalue", "KEY=VALUE")),
        (("--spark-conf", "=x"), ("'='",)),
        (("--batch-bytes", "0"), ("--batch-bytes 0",)),
        (("--batch-bytes", "-5"), ("--batch-bytes -5",)),
        (("--chunk-bytes", "0"), ("--chunk-bytes 0",)),
        (("--log-format", "xml"), ("'xml'", "text or json")),
    ],
    ids=str,
)
def test_bad_options_are_refused_before_any_state_is_made(
    shell: Shell, options: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    shell.run("coffee", *options).one_line("USAGE_INVALID", *parts, exit_code=2)
    assert not (shell.root / "state").exists()


def test_an_option_that_is_no_size_is_refused_with_an_example(shell: Shell) -> None:
    ended = shell.run("coffee", "--batch-bytes", "many")
    ended.one_line("USAGE_INVALID", "--batch-bytes many", "64MiB", exit_code=2)
    assert not (shell.root / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("foo",), ("'foo'", "See: holdfast --help")),
        (("rum",), ("'rum'", "Did you mean 'run'?", "See: holdfast --help")),
        (("--foo",), ("--foo", "See: holdfast --help")),
        (("run",), ("pipeline", "See: holdfast run --help")),
        (("run", "coffee", "--out", "o", "--state", "s"), ("--input",)),
        (("run", "coffee", "--inptu", "x"), ("--inptu", "--input")),
        (("run", "coffee", "--input"), ("--input", "argument")),
        (("verify", "--state", "s", "more"), ("more", "See: holdfast verify --help")),
        (("coffee",), ("missing command", "See: holdfast coffee --help")),
        (("coffee", "generate"), ("--out", "See: holdfast coffee generate --help")),
        (("coffee", "generate", "--out", "o", "--seed", "x"), ("--seed", "integer")),
    ],
    ids=" ".join,
)
def test_a_bad_command_line_is_one_line_like_any_other_error(
    shell: Shell, arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    shell(*arguments).one_line("USAGE_INVALID", *parts, exit_code=2)
    assert list(shell.root.iterdir()) == []


def test_no_command_at_all_is_help(shell: Shell) -> None:
    assert (shell().code, shell().out) == (0, shell("--help").out)


def test_settings_come_from_the_file_of_the_working_directory(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is one that is refused, so that what was resolved shows."""
    (shell.root / "holdfast.toml").write_text('master = "yarn"\n')
    shell.run("coffee").one_line("CLUSTER_NEEDS_SHARED_STATE", "yarn", exit_code=1)
    monkeypatch.setenv("HOLDFAST_MASTER", "k8s://x")
    shell.run("coffee").one_line("CLUSTER_NEEDS_SHARED_STATE", "k8s://x", exit_code=1)
    ended = shell.run("coffee", "--master", "spark://y")
    ended.one_line("CLUSTER_NEEDS_SHARED_STATE", "spark://y", exit_code=1)
    (shell.root / "other.toml").write_text("batch_byte = 1\n")
    ended = shell.run("coffee", "--config", "other.toml")
    ended.one_line("USAGE_INVALID", "other.toml:1", "batch_bytes", exit_code=2)


def test_options_of_a_stage_that_is_not_there_are_one_line(shell: Shell) -> None:
    """For `run` and for every part of a service that knows the pipeline."""
    (shell.root / "holdfast.toml").write_text("[stages.open_hour]\ndurable = true\n")
    words = ("PIPELINE_INVALID", "[stages.open_hour]", "Did you mean open_hours?")
    shell.run("coffee").one_line(*words, exit_code=2)
    for part in ("up", "engine", "gateway"):
        ended = shell(part, "--pipeline", "coffee", "--state", "state")
        ended.one_line(*words, exit_code=2)


def completed(words: str, cwd: Path) -> list[str]:
    """Return what the shell would offer, asked as the installed bash script asks."""
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": words}
    asked["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.cli"],
        env={**os.environ, **asked},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.split()


def test_the_shell_completes_verbs_options_and_pipelines(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.py").write_text("")
    assert completed("holdfast ver", tmp_path) == ["verify"]
    assert completed("holdfast run ", tmp_path) == ["coffee", "mine.py"]
    assert completed("holdfast run cof", tmp_path) == ["coffee"]
    assert completed("holdfast run sub/", tmp_path) == ["sub/deep.py"]
    assert "--batch-bytes" in completed("holdfast run coffee --b", tmp_path)


def test_the_completion_script_is_for_this_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.cli"],
        env={**os.environ, "_HOLDFAST_COMPLETE": "source_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_HOLDFAST_COMPLETE=complete_bash" in ended.stdout
    assert "complete -o default -F _holdfast_completion holdfast" in ended.stdout


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://x"])
def test_a_cluster_is_refused_unless_the_state_is_said_to_be_shared(
    shell: Shell, master: str
) -> None:
    ended = shell.run("coffee", "--master", master)
    ended.one_line("CLUSTER_NEEDS_SHARED_STATE", master, "--shared-state", exit_code=1)
    assert not (shell.root / "state").exists()


def test_a_missing_input_directory_is_named(shell: Shell) -> None:
    places = ("--input", "nowhere", "--out", "out", "--state", "state")
    shell("run", "coffee", *places).one_line("USAGE_INVALID", "nowhere", exit_code=2)


def test_an_input_directory_without_the_tables_is_named(shell: Shell) -> None:
    shell.run("coffee").one_line("USAGE_INVALID", "no file for table", exit_code=2)


def test_a_state_path_that_is_a_file_is_an_error_of_the_machine(shell: Shell) -> None:
    (shell.root / "state").write_text("")
    shell.run("coffee").one_line("STORAGE_FAILED", "state", exit_code=1)


@pytest.mark.parametrize("verb", ["status", "barrier", "verify", "gc"])
def test_questions_about_a_directory_without_state(shell: Shell, verb: str) -> None:
    for place in (".", "missing"):
        shell(verb, "--state", place).one_line("USAGE_INVALID", "no Holdfast state", exit_code=2)
    assert list(shell.root.iterdir()) == []


@pytest.mark.parametrize("verb", ["status", "barrier", "verify", "gc"])
def test_questions_about_a_foreign_file(shell: Shell, verb: str) -> None:
    (shell.root / "store.sqlite3").write_bytes(b"not a database, by far" * 100)
    shell(verb, "--state", ".").one_line("DAMAGED", "store.sqlite3", exit_code=1)


def test_status_and_verify_of_a_finished_run(shell: Shell) -> None:
    write_sales(shell.root)
    run_toy(shell.root, pipeline=tiny_pipeline())
    told = shell("status", "--state", "state")
    assert told.code == 0
    assert "tiny: DONE" in told.out
    assert "next: holdfast verify --state state" in told.out
    told_json = json.loads(shell("status", "--state", "state", "--json").out)
    assert told_json["owner_pid"] is None
    (view,) = told_json["runs"]
    assert (view["state"], view["pipeline"]) == ("DONE", "tiny")
    told = shell("verify", "--state", "state", "--out", "out")
    assert (told.code, told.err) == (0, "")
    assert "all is well\nnext: nothing: " in told.out


def test_questions_about_a_run_that_is_not_finished(shell: Shell) -> None:
    """status, barrier and verify in text: what is missing, who works here, what comes next."""
    run_id = open_run_with_gaps(shell.root)
    told = shell("status", "--state", "state")
    assert (told.code, told.err) == (0, "")
    assert "state: no process works here\n" in told.out
    assert f"run {run_id} of toy: OPEN, not finished\n  created 20" in told.out
    assert "  0 batches committed, 0 of at least 5 chunks applied, no result yet" in told.out
    assert "  sales            5         2        0  2-3, 5\n" in told.out
    assert told.out.endswith(
        "next: the same `holdfast run ... --state state` as before resumes it\n"
    )
    with hold(shell.root / "state"):
        told = shell("status", run_id, "--state", "state")
        assert f"state: process {os.getpid()} works here now\n" in told.out
        assert told.out.endswith(f"kill -INT {os.getpid()}\n")
    told = shell("barrier", "--state", "state")
    assert told.code == 0
    head, *lines = told.out.splitlines()
    assert head.startswith(f"run {run_id} of toy: OPEN, open since 20")
    assert lines == [
        "barrier of segment 1: waits",
        "  sales: announced 5, missing 2-3, 5, received and not applied 1, 4",
        "  sales/b: has not said END, 0 received, received and not applied none",
        "barrier of segment 2: waits",
        "  doubled: has not said END, 0 received, received and not applied none",
        "next: senders send what is missing; then holdfast barrier --state state",
    ]
    view = json.loads(shell("barrier", run_id, "--state", "state", "--json").out)
    assert view["waits"][0]["missing"] == "2-3, 5"
    shell("barrier", "x", "--state", "state").one_line("USAGE_INVALID", run_id, exit_code=2)
    told = shell("verify", "--state", "state")
    assert told.code == 0
    assert "1 run, 2 chunks, 0 files, 0 orphans: all is well so far;" in told.out
    assert "1 run not finished" in told.out


def test_a_run_that_was_killed_does_not_read_as_finished(shell: Shell) -> None:
    """After a kill every planned batch may be committed: what is left to do is in the chunks."""
    for number in range(3):
        write_sales(shell.root, name=f"sales_{number}.csv")
    batches = []

    class Killed(BaseException):
        pass

    def kill(work: BatchWork | SeriesWork) -> None:
        batches.append(work)
        if len(batches) == 3:
            raise Killed

    one_chunk = Config(batch_chunks=1)
    with pytest.raises(Killed):
        run_toy(shell.root, pipeline=tiny_pipeline(), before=kill, config=one_chunk)
    told = shell("status", "--state", "state").out
    assert "of tiny: OPEN, not finished\n" in told
    assert "  2 batches committed, 2 of 3 chunks applied, no result yet, 0 failed" in told
    run_toy(shell.root, pipeline=tiny_pipeline(), config=one_chunk)
    told = shell("status", "--state", "state").out
    assert "of tiny: DONE\n" in told
    assert "  3 batches committed, 3 of 3 chunks applied, 2 of 2 results, 0 failed" in told


def test_the_barrier_of_a_finished_run(shell: Shell) -> None:
    write_sales(shell.root)
    run_toy(shell.root, pipeline=tiny_pipeline())
    told = shell("barrier", "--state", "state").out.splitlines()
    assert told[1:] == ["the run is over: no barrier waits", "next: holdfast status --state state"]


def test_mistakes_are_objects_too_if_lines_of_json_are_asked_for(shell: Shell) -> None:
    ended = shell.run("coffee", "--log-format", "json", "--chunk-bytes", "0")
    assert ended.code == 2
    told = json.loads(ended.err)
    assert (told["event"], told["code"]) == ("error", "USAGE_INVALID")
    assert "--chunk-bytes 0" in told["facts"]["what"]
    (shell.root / "state").write_text("")
    ended = shell.run("coffee", "--log-format", "json")
    assert (ended.code, json.loads(ended.err)["code"]) == (1, "STORAGE_FAILED")


def test_verify_of_a_damaged_run_exits_with_one_and_names_it(shell: Shell) -> None:
    write_sales(shell.root)
    run_toy(shell.root, pipeline=tiny_pipeline())
    flip_byte(shell.root / "out" / "report.csv")
    assert shell("verify", "--state", "state").code == 0
    told = shell("verify", "--state", "state", "--out", "out")
    assert told.code == 1
    assert "report.csv" in told.out
    assert ": 1 problem\n" in told.out
    told = shell("verify", "--state", "state", "--out", "out", "--json")
    assert told.code == 1
    assert len(json.loads(told.out)["findings"]) == 1


def test_a_finished_run_is_run_again_without_spark(shell: Shell) -> None:
    """All the way through `holdfast run`: a lost export comes back, and no child is started."""
    text = "from tests.unit.plain_runs import tiny_pipeline\npipe = tiny_pipeline()\n"
    (shell.root / "cli_tiny.py").write_text(text)
    write_sales(shell.root)
    run_toy(shell.root, pipeline=tiny_pipeline())
    wanted = (shell.root / "out" / "report.csv").read_bytes()
    ended = shell.run("cli_tiny.py")
    assert (ended.code, ended.err) == (0, "")
    assert "finished before: nothing to do" in ended.out
    (shell.root / "out" / "report.csv").unlink()
    ended = shell.run("cli_tiny.py", "--json")
    assert json.loads(ended.out)["already_done"] is True
    assert "report.csv" in ended.err
    assert (shell.root / "out" / "report.csv").read_bytes() == wanted


@pytest.mark.parametrize("verb", ["generate", "oracle"])
@pytest.mark.parametrize("scale", ["0", "-1", "nan", "1e9"])
def test_coffee_refuses_a_scale_that_makes_no_sense(shell: Shell, verb: str, scale: str) -> None:
    ended = shell("coffee", verb, "--scale", scale, "--out", "made")
    ended.one_line("USAGE_INVALID", "scale", exit_code=2)
    assert not (shell.root / "made").exists()


def test_coffee_answers_in_json_too(shell: Shell) -> None:
    options = ("--scale", "0.0001", "--json")
    made = json.loads(shell("coffee", "generate", "--out", "made", *options).out)
    sizes = [path.stat().st_size for path in (shell.root / "made").iterdir()]
    assert made == {"out": "made", "files": len(sizes), "bytes": sum(sizes)}
    told = json.loads(shell("coffee", "oracle", "--out", "right", *options).out)
    assert told["out"] == "right"
    assert told["q1_rows"] >= 0


def test_coffee_generate_does_not_write_into_a_full_directory(shell: Shell) -> None:
    (shell.root / "made").mkdir()
    (shell.root / "made" / "mine.txt").write_text("keep")
    ended = shell("coffee", "generate", "--scale", "0.0001", "--out", "made")
    ended.one_line("USAGE_INVALID", "made", exit_code=2)
    assert os.listdir(shell.root / "made") == ["mine.txt"]


@pytest.mark.parametrize("verb", ["generate", "oracle"])
def test_coffee_refuses_to_write_where_a_file_is(shell: Shell, verb: str) -> None:
    (shell.root / "made").write_text("keep")
    ended = shell("coffee", verb, "--scale", "0.0001", "--out", "made")
    assert ended.code in (1, 2)
    assert ended.err.startswith("holdfast: [")
    assert ended.err.count("\n") == 1
    assert (shell.root / "made").read_text() == "keep"


@pytest.mark.parametrize("verb", ["generate", "oracle"])
def test_coffee_needs_a_place_to_write(shell: Shell, verb: str) -> None:
    ended = shell("coffee", verb)
    assert ended.code == 2
    assert "Traceback" not in ended.err


def test_demo_does_not_write_into_a_full_directory(shell: Shell) -> None:
    (shell.root / "mine").write_text("keep")
    shell("demo", "--keep", ".").one_line("USAGE_INVALID", "not empty", exit_code=2)
    assert os.listdir(shell.root) == ["mine"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_secret_among_the_settings_is_not_shown(shell: Shell, more: tuple[str, ...]) -> None:
    text = '[spark]\n"hadoop.fs.s3a.secret.key" = "canary"\n"hadoop.fs.s3a.endpoint" = "here"\n'
    (shell.root / "holdfast.toml").write_text(text)
    ended = shell("doctor", *more)
    assert "hadoop.fs.s3a.secret.key" in ended.out
    assert "here" in ended.out
    assert "canary" not in ended.out + ended.err


@pytest.mark.parametrize("value", ["--spark-conf", "HOLDFAST_SPARK_CONF"])
def test_a_setting_that_is_refused_is_not_quoted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    if value == "--spark-conf":
        ended = shell.run("coffee", "--spark-conf", "fs.s3a.secret.key=canary")
    else:
        monkeypatch.setenv(value, "spark.password='canary")
        ended = shell.run("coffee")
    assert ended.code == 2
    assert "canary" not in ended.err


@pytest.mark.parametrize(
    "text",
    ["transaction_wait_s = 1" + "0" * 400, "fetch_records = 1" + "0" * 5000, "x = " + "[" * 5000],
)
def test_numbers_and_nesting_without_end_are_one_line(shell: Shell, text: str) -> None:
    (shell.root / "holdfast.toml").write_text(text + "\n")
    shell.run("coffee").one_line("USAGE_INVALID", exit_code=2)


def test_a_misspelt_crash_point_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CRASH", "engine.comit.after")
    shell("--version").one_line("USAGE_INVALID", "engine.commit.after", exit_code=2)


def test_calls_without_a_ledger_is_one_line(shell: Shell) -> None:
    shell("calls").one_line("USAGE_INVALID", "See: holdfast calls --help", exit_code=2)
