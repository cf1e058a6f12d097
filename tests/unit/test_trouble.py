"""What a stage of the user's raised, as people read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import StageInvalid
from holdfast.spark.trouble import building

HERE = Path(__file__)


def where_of_a_fault() -> str:
    with pytest.raises(StageInvalid) as caught, building("s"):
        raise ValueError("no")
    return caught.value.where.rpartition(":")[0]


def test_the_users_line_is_named_without_the_place_of_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Clients of a server read it: from where its process works, or by its name."""
    monkeypatch.chdir(HERE.parents[1])
    assert where_of_a_fault() == "unit/test_trouble.py"
    monkeypatch.chdir(tmp_path)
    assert where_of_a_fault() == "test_trouble.py"
