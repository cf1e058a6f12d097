from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from holdfast.spark.session import build_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/tests/spark/" in str(item.path):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = build_session(
        master="local[2]",
        app_name="holdfast-tests",
        conf={},
        log_file=tmp_path_factory.mktemp("spark") / "spark.log",
        short=True,
    )
    yield session
    session.stop()
