"""One run of the paid demo's job, in a process to be killed: python -m ... DIRECTORY URL MODE."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.apps.paid.reviews import run_paid, run_plain
from holdfast.spark.session import build_session


def main(directory: Path, url: str, mode: str) -> None:
    """Run it once."""
    log = directory / f"{mode}.log"
    spark = build_session(
        master="local[2]", app_name=f"demo {mode}", conf={}, log_file=log, short=True
    )
    if mode == "plain":
        run_plain(spark, url, directory / "plain-out")
    else:
        receipt = run_paid(spark, url, directory / "paid-out", f"file://{directory}/ledger")
        sys.stdout.write(f"{receipt}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
