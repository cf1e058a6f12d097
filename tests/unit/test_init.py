"""`holdfast init`: what it makes, and where it refuses to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.init import FILES, init_command
from holdfast.cli.settings import load_settings
from holdfast.errors import UsageInvalid


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_a_project_is_made_and_the_next_step_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init_command("shop", as_json=False)
    assert made(here / "shop") == set(FILES)
    out = capsys.readouterr().out.splitlines()
    assert out[-1].startswith("next: cd shop && holdfast run pipeline.py --input data ")
    assert 'Pipeline("shop")' in (here / "shop" / "pipeline.py").read_text()
    for name in FILES:
        assert "{name}" not in (here / "shop" / name).read_text()


def test_an_empty_directory_will_do(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "shop").mkdir()
    init_command("shop", as_json=True)
    assert json.loads(capsys.readouterr().out)["files"] == list(FILES)
    assert made(here / "shop") == set(FILES)


def test_its_settings_are_accepted_and_give_several_batches(here: Path) -> None:
    init_command("shop", as_json=True)
    config = load_settings(here / "shop" / "holdfast.toml", {}, (), {}).config
    sizes = [path.stat().st_size for path in (here / "shop" / "data").glob("sales_*.csv")]
    assert len(sizes) >= 4
    assert max(sizes) < config.batch_bytes < 2 * min(sizes)


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "../a", "/tmp/a", ".", "1a", "-x", "a-b", "e\u00e9", "x" * 64]
)
def test_a_bad_name_is_refused(here: Path, name: str) -> None:
    with pytest.raises(UsageInvalid, match="no name for a project"):
        init_command(name, as_json=False)
    assert list(here.iterdir()) == []


def test_what_is_there_already_is_left_alone(here: Path) -> None:
    (here / "shop").mkdir()
    (here / "shop" / "mine.txt").write_text("keep")
    (here / "note").write_text("keep")
    for name in ("shop", "note"):
        with pytest.raises(UsageInvalid, match=f"{name} is there"):
            init_command(name, as_json=False)
    assert made(here) == {"shop/mine.txt", "note"}
