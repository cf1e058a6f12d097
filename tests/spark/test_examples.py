"""Every example runs against the bundled provider, and its books show each slot once."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

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


def holdfast(provider: Bundled, verb: str, *options: str) -> dict[str, Any]:
    pipeline = str(EXAMPLES / "reviews_pipeline.py")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", verb, pipeline, *options, "--json"],
        env={**os.environ, "PROVIDER_URL": provider.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.timeout(300)
def test_reviews_pipeline(provider: Bundled, tmp_path: Path) -> None:
    """By the command line: a dry run that buys nothing, then a run that ends with a receipt."""
    data = tmp_path / "data"
    data.mkdir()
    texts = ["good cake", "cold tea", "  ", "great room"]
    lines = [f"{number},{text}" for number, text in enumerate(texts)]
    (data / "reviews.csv").write_text("review_id,text\n" + "\n".join(lines) + "\n")
    shown = holdfast(provider, "dry-run", "--input", str(data))
    (dry,) = shown["steps"]
    assert (dry["step"], dry["rows"], dry["to_buy"], dry["about_usd"]) == ("label", 3, 3, None)
    assert not provider.texts()
    places = ("--out", str(tmp_path / "out"), "--state", str(tmp_path / "state"))
    (receipt,) = holdfast(provider, "run", "--input", str(data), *places)["paid"]
    assert (receipt["step"], receipt["bought"], receipt["in_doubt"]) == ("label", 3, 0)
    assert receipt["spent_usd"] > 0
    by_label = (tmp_path / "out" / "by_label.csv").read_text()
    assert by_label == "label,count\nblame,1\npraise,2\n"
    assert provider.texts() == Counter(["good cake", "cold tea", "great room"])


def test_the_provider_charges_only_what_it_answers(provider: Bundled) -> None:
    def post(body: bytes) -> dict[str, Any]:
        request = urllib.request.Request(f"{provider.url}/v1/chat/completions", body)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return dict(json.load(reply))

    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(b"{}")
    reply = post(b'{"messages": [{"content": "stale cake"}]}')
    assert reply["choices"][0]["message"]["content"] == "blame"
    assert reply["usage"] == {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    with urllib.request.urlopen(f"{provider.url}/count", timeout=30) as count:
        assert json.load(count) == {"count": 1}
    assert provider.texts() == Counter(["stale cake"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_paid_demo_keeps_its_promise() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo", "paid"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the promise was kept" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("calls charged")]
    plain, paid = (int(word.replace(",", "")) for word in line.split()[-2:])
    assert 400 <= paid <= 416
    assert plain >= 800
