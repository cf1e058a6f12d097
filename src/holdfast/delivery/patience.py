"""How long to wait before a notice is sent again, and when to give it up. Pure.

Waiting doubles from `notice_wait_s` to `notice_wait_max_s`, with a jitter of up to a half taken
off, so that many notices that failed together do not come back together. The jitter is drawn from
the notice's own id and the number of its failures: the same notice waits the same after a crash.
"""

from __future__ import annotations

from holdfast._base.ids import digest_bytes
from holdfast.config import Config

_LARGEST = 1 << 32


def wait_ms(config: Config, notice_id: str, failures: int, retry_after_s: int | None) -> int | None:
    """Return how long to wait after the `failures`-th failure; None: give it up.

    A receiver that names a number of seconds (Retry-After) is given at least that, up to the
    longest wait.
    """
    if failures >= config.notice_attempts_max:
        return None
    longest = config.notice_wait_max_s
    wait = min(config.notice_wait_s * 2.0 ** min(failures - 1, 40), longest)
    chance = int.from_bytes(digest_bytes("jitter", notice_id, failures)[:4]) / _LARGEST
    wait *= 1 - chance / 2
    if retry_after_s is not None:
        wait = max(wait, min(float(retry_after_s), longest))
    return int(wait * 1000)


def retry_after_s(value: str | None) -> int | None:
    """Return the seconds of a Retry-After header. A date is not taken: it would need our clock."""
    digits = "" if value is None else value.strip()
    # Other scripts have digits too, and some of them are no numbers.
    if not digits.isascii() or not digits.isdigit() or len(digits) > 12:
        return None
    return int(digits)
