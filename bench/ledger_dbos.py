"""The peer: a durable `dbos` workflow on SQLite. python ledger_dbos.py DIRECTORY STEPS AT_ONCE"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from dbos import DBOS


@DBOS.step()
async def call(key: str) -> str:
    return key


@DBOS.workflow()
async def job(rows: int, at_once: int) -> None:
    for start in range(0, rows, at_once):
        await asyncio.gather(*(call(str(n)) for n in range(start, min(rows, start + at_once))))


async def measure(rows: int, at_once: int) -> float:
    await job(at_once, at_once)  # its threads and statements are made at the first
    started = time.perf_counter()
    await job(rows, at_once)
    return time.perf_counter() - started


def main(directory: str, rows: int, at_once: int) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{directory}/dbos.sqlite",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    print(asyncio.run(measure(rows, at_once)), flush=True)
    os._exit(0)  # its threads would keep the process


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
