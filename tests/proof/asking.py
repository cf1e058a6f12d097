"""What runs in Spark's workers: the paid function, and plain Spark's ways of calling it.

Nothing here knows Holdfast. The plain variants are what one writes without it.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf


class Refused(Exception):
    """The provider's answer was no; `code` is HTTP's."""

    def __init__(self, code: int, retry_after: str | None) -> None:
        super().__init__(f"HTTP {code}")
        self.code, self.retry_after = code, retry_after


def post(port: int, path: str, body: dict[str, Any], timeout_s: float = 600) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", path, json.dumps(body))
        reply = connection.getresponse()
        data = reply.read()
        if reply.status != 200:
            raise Refused(reply.status, reply.headers.get("Retry-After"))
        found: dict[str, Any] = json.loads(data)
        return found
    finally:
        connection.close()


class Ask:
    """The paid function: asks the witness for a key."""

    def __init__(self, port: int, case: str, *, prefix: str = "", timeout_s: float = 600) -> None:
        self.port, self.case, self.prefix, self.timeout_s = port, case, prefix, timeout_s

    def __call__(self, row: Any, idempotency_key: str = "") -> str:
        return self.key(str(row.id), idempotency_key)

    def key(self, key: str, idempotency_key: str = "") -> str:
        body = {"case": self.case, "key": self.prefix + key, "pid": os.getpid()}
        body["idempotency_key"] = idempotency_key
        found = post(self.port, "/call", body, self.timeout_s)
        if found["act"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if found["act"] == "die-executor":
            kill_executor()
        answer: str = found["answer"]
        return answer

    def find(self, row: Any, idempotency_key: str) -> str | None:
        """Ask the provider for what it answered before."""
        body = {"case": self.case, "idempotency_key": idempotency_key}
        answer: str | None = post(self.port, "/find", body)["answer"]
        return answer


def kill_executor() -> None:
    """SIGKILL the JVM above this worker: its parent is the daemon, whose parent is the JVM."""
    with open(f"/proc/{os.getppid()}/stat", encoding="ascii") as file:
        executor = int(file.read().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)


def plain_arrow(ask: Ask, answer: str) -> Callable[[DataFrame], DataFrame]:
    """Plain Spark: mapInArrow with eight calls at once."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(8) as pool:
            for batch in batches:
                keys = [str(value) for value in batch.column("id").to_pylist()]
                answers = pa.array(list(pool.map(ask.key, keys)), pa.string())
                columns = [*batch.columns, answers]
                yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, answer])

    def transform(frame: DataFrame) -> DataFrame:
        fields = [f"{name} {kind}" for name, kind in frame.dtypes]
        return frame.mapInArrow(run, ", ".join([*fields, f"{answer} string"]))

    return transform


def plain_udf(ask: Ask, answer: str) -> Callable[[DataFrame], DataFrame]:
    """Plain Spark: a Python UDF that gives a column."""
    paid = sf.udf(lambda key: ask.key(str(key)), "string")
    return lambda frame: frame.withColumn(answer, paid("id"))


def plain_struct(ask: Ask, answer: str) -> Callable[[DataFrame], DataFrame]:
    """Plain Spark: a Python UDF that gives a struct, whose fields become columns."""

    def both(key: Any) -> tuple[str, int]:
        text = ask.key(str(key))
        return text, len(text)

    paid = sf.udf(both, f"{answer} string, size int")
    return lambda frame: frame.withColumn("s", paid("id")).select("id", f"s.{answer}", "s.size")
