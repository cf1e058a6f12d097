"""A whole job in a process of its own, to be killed: python paid_job.py DIRECTORY ROWS DELAY_S."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import cloudpickle

from holdfast import Limits, pay_once
from holdfast.spark.session import build_session


def main(directory: Path, rows: int, delay_s: float) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    import paid_provider  # type: ignore[import-not-found]  # beside this file

    cloudpickle.register_pickle_by_value(paid_provider)  # type: ignore[no-untyped-call]
    spark = build_session(
        master="local[2]",
        app_name="paid-job",
        conf={},
        log_file=directory / "spark.log",
        short=True,
    )
    step = pay_once(
        paid_provider.Provider(directory / "calls.log", delay_s=delay_s),
        name="ask",
        key="id",
        returns="answer string",
        ledger=f"file://{directory}/ledger",
        version="1",
        limits=Limits(max_in_flight=4, intent_ahead=4),
    )
    spark.range(rows).transform(step).write.mode("overwrite").json(str(directory / "out"))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
