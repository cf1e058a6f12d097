"""Appends numbered batches as fast as the log takes them: `endless_producer URL`.

Says after each batch how many records are confirmed; ends when its input does.
"""

from __future__ import annotations

import select
import sys

from holdfast.log.contract import Record
from holdfast.log.open import open_backend

TOPIC = "t"
BATCH, RECORD_BYTES = 100, 1024


def value_of(number: int) -> bytes:
    """Return the value of a record, which says its number."""
    return b"%d " % number * (RECORD_BYTES // 12)


def main() -> None:
    log = open_backend(sys.argv[1])
    log.start()
    log.create_topic(TOPIC)
    done = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        log.produce_batch(TOPIC, [Record(value_of(done + item)) for item in range(BATCH)])
        done += BATCH
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
    log.stop()


if __name__ == "__main__":
    main()
