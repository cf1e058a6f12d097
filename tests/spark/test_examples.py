"""Every example runs against the bundled provider, and its books show each slot once."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.cli.run import with_format
from holdfast.intake.listing import list_tables
from holdfast.spark.dry_pipeline import dry_run_pipeline
from holdfast.spark.load import load_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"


class Bundled:
    """The bundled provider in a process of its own, and its books."""

    def __init__(self, books: Path) -> None:
        self.books = books
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.apps.paid.provider", "--books", str(books)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"

    def texts(self) -> Counter[str]:
        lines = self.books.read_text().splitlines()
        return Counter(json.loads(line)["text"] for line in lines)


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bundled]:
    bundled = Bundled(tmp_path / "books.jsonl")
    monkeypatch.setenv("HOLDFAST_LEDGER", f"file://{tmp_path}/ledger")
    yield bundled
    bundled.process.kill()
    bundled.process.wait()
    if bundled.process.stdout is not None:
        bundled.process.stdout.close()


@pytest.fixture
def pointed(provider: Bundled, spark: SparkSession) -> Iterator[Bundled]:
    """Point workers at the provider: they have the environment of the session, not of the test."""
    from holdfast.apps.paid import chat

    del chat
    spark.sparkContext.environment["PROVIDER_URL"] = provider.url
    yield provider
    del spark.sparkContext.environment["PROVIDER_URL"]


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_chat_completion(
    spark: SparkSession,
    pointed: Bundled,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("chat_completion.py", monkeypatch)
    first = capsys.readouterr().out
    run("chat_completion.py", monkeypatch)
    second = capsys.readouterr().out
    assert "30 slots, 0 recorded, 30 to buy" in first
    assert "bought 30, reused 0" in first
    assert "30 recorded, 0 to buy" in second
    assert "bought 0, reused 30" in second
    assert "spent 0.0000 USD" in second
    assert set(pointed.texts().values()) == {1}
    assert len(pointed.texts()) == 30


def test_image_labels(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HOLDFAST_LEDGER", f"file://{tmp_path}/ledger")
    images = tmp_path / "images"
    images.mkdir()
    for number in range(12):
        (images / f"{number} x.raw").write_bytes(bytes([250 if number % 3 else 5]) * 1000)
    for receipt in ("bought 12, reused 0", "bought 0, reused 12"):
        run("image_labels.py", monkeypatch, str(images))
        out = capsys.readouterr().out
        assert receipt in out
        assert "light|    8" in out
        assert "dark|    4" in out


def test_review_stream(
    spark: SparkSession,
    pointed: Bundled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [(n, f"number {n} was good") for n in range(20)]
    frame = spark.createDataFrame(rows, "review_id int, text string")
    frame.write.json(f"{tmp_path}/in")
    for turn, receipt in enumerate(("bought 20", "bought 0, reused 20")):
        places = (f"{tmp_path}/in", f"{tmp_path}/out{turn}", f"{tmp_path}/checkpoint{turn}")
        run("review_stream.py", monkeypatch, *places)
        assert receipt in capsys.readouterr().out
        labels = spark.read.parquet(f"{tmp_path}/out{turn}").select("label").distinct().collect()
        assert [row["label"] for row in labels] == ["praise"]
    assert set(pointed.texts().values()) == {1}


def test_reviews_pipeline(spark: SparkSession, provider: Bundled, tmp_path: Path) -> None:
    """Dry, then run by the command line, with a receipt; run again with new state: all reused."""
    data = tmp_path / "data"
    data.mkdir()
    texts = ["good cake", "cold tea", "  ", "great room"]
    lines = [f"{number},{text}" for number, text in enumerate(texts)]
    (data / "reviews.csv").write_text("review_id,text\n" + "\n".join(lines) + "\n")
    loaded = load_pipeline(str(EXAMPLES / "reviews_pipeline.py"))
    spec = with_format(loaded.spec(), None)
    runs = dry_run_pipeline(loaded, spec, list_tables(data, spec.tables), spark)
    assert [(run.step, run.rows, run.to_buy) for run in runs.known] == [("label", 3, 3)]
    assert not provider.texts()
    command = [sys.executable, "-m", "holdfast.cli", "run", str(EXAMPLES / "reviews_pipeline.py")]
    command += ["--input", str(data), "--out", str(tmp_path / "out"), "--json"]
    environment = {**os.environ, "PROVIDER_URL": provider.url}
    done = subprocess.run(
        [*command, "--state", str(tmp_path / "state")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (receipt,) = json.loads(done.stdout)["paid"]
    assert (receipt["step"], receipt["bought"], receipt["in_doubt"]) == ("label", 3, 0)
    assert receipt["spent_usd"] > 0
    by_label = (tmp_path / "out" / "by_label.csv").read_text()
    assert by_label == "label,count\nblame,1\npraise,2\n"
    assert provider.texts() == Counter(["good cake", "cold tea", "great room"])
