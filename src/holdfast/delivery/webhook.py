"""Notices to webhooks: counted, sent, recorded; given up after a limit.

1. The attempt is counted. Crash after: it is sent again, under the same id.
2. The notice is sent, signed. Crash after: the receiver has it, and gets it again.
3. What came of it is recorded: taken, due again, or given up.

A receiver that is slow holds up one thread, not the others' notices nor any run. A client has one
notice under way at a time, so its own are sent in the order they came due, and however many it has
due, each other client's first one is next.

Crash points: `notice.*`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from holdfast._base.clock import Clock
from holdfast._base.crashpoint import crashpoint
from holdfast.config import Config
from holdfast.delivery.deadline import Deadline
from holdfast.delivery.patience import retry_after_s, wait_ms
from holdfast.delivery.signing import NOTICE_ID, SIGNATURE, sign, signing_secret
from holdfast.errors import DiskFull
from holdfast.store.contract import NoticeStore
from holdfast.store.result_rows import Notice
from holdfast.store.rows import Fence

THREADS = 8
"""Receivers that may be slow at once before others wait for them. Each costs a connection to the
store and its cache."""
FAILING_THREADS = THREADS // 2
"""Of these, how many may be at work for receivers that failed the last time. The others are kept
for those who answer: any number that hang cannot stop all threads but once."""
_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one attempt: None is the error of one that was taken."""

    error: str | None
    retry_after_s: int | None = None


class Sender:
    """Sends notices that are due. `advance` never waits for a receiver."""

    def __init__(
        self, store: NoticeStore, fence: Fence, secrets: Path, config: Config, clock: Clock
    ) -> None:
        """Take no proxy and no redirect: the operator's URL is it. Each attempt has its own line,
        which its deadline can shut.
        """
        self._store, self._fence, self._secrets = store, fence, secrets
        self._config, self._clock = config, clock
        self._http = httpx.Client(
            timeout=config.notice_timeout_s,
            limits=httpx.Limits(max_keepalive_connections=0),
            follow_redirects=False,
            trust_env=False,
        )
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="notice")
        self._guard = threading.Lock()
        self._busy: set[str] = set()
        self._failing: set[str] = set()
        self._failed: BaseException | None = None

    def advance(self) -> int:
        """Begin what is due; returns how many were begun.

        Raises whatever a thread met since the last call: Fenced above all.
        """
        with self._guard:
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        with self._guard:
            busy, failing = set(self._busy), set(self._failing)
        room = FAILING_THREADS - len(busy & failing)
        if len(busy) >= THREADS:
            return 0
        begun = 0
        without = busy | failing if room <= 0 else busy
        for notice in self._store.due_notices(THREADS - len(busy), without=without):
            if notice.client in failing:
                if room <= 0:
                    continue
                room -= 1
            with self._guard:
                self._busy.add(notice.client)
            self._pool.submit(self.send, notice).add_done_callback(self._done(notice.client))
            begun += 1
        return begun

    @property
    def is_busy(self) -> bool:
        """Tell whether a notice is under way."""
        with self._guard:
            return bool(self._busy)

    def close(self) -> None:
        """Let those under way come to their end, and begin no other."""
        self._pool.shutdown(wait=True)
        self._http.close()

    def _done(self, client: str) -> Callable[[Future[None]], None]:
        def done(future: Future[None]) -> None:
            error = future.exception()
            with self._guard:
                self._busy.discard(client)
                self._failed = self._failed or error

        return done

    def send(self, notice: Notice) -> None:
        """Make one attempt; steps as above."""
        if self._store.begin_notice(self._fence, notice.notice_id) is None:
            return
        crashpoint("notice.attempt.after")
        answer = self._try(notice)
        crashpoint("notice.send.after")
        with self._guard:
            self._failing.discard(notice.client)
            if answer.error is not None:
                self._failing.add(notice.client)
        if answer.error is None:
            self._store.record_sent(self._fence, notice.notice_id)
        else:
            failures = notice.failures + 1
            wait = wait_ms(self._config, notice.notice_id, failures, answer.retry_after_s)
            self._store.record_unsent(self._fence, notice.notice_id, answer.error, wait_ms=wait)
        crashpoint("notice.record.after")

    def _try(self, notice: Notice) -> Answer:
        """Post a notice. Whatever comes of its own address or secret is its own failed try."""
        limit_s = self._config.notice_timeout_s
        with Deadline(limit_s) as deadline:
            try:
                return self._post(notice, deadline)
            except DiskFull:  # everybody's: no secret can be made
                raise
            except Exception as error:  # the resolver and its codecs raise anything
                if deadline.is_over:
                    return Answer(f"no answer within {limit_s:g} s")
                return Answer(f"{type(error).__name__}: {error}"[:_ERROR_CHARS])

    def _post(self, notice: Notice, deadline: Deadline) -> Answer:
        body = notice.body.encode()
        secret = signing_secret(self._secrets, notice.client)
        headers = {
            "Content-Type": "application/json",
            NOTICE_ID: notice.notice_id,
            SIGNATURE: sign(secret, body, self._clock.wall_ms() // 1000),
        }
        # The answer's body is nobody's business, and may be endless: only its head is read.
        seen = {"trace": deadline.trace}
        with self._http.stream(
            "POST", notice.url, content=body, headers=headers, extensions=seen
        ) as answer:
            if answer.is_success:
                return Answer(None)
            after = retry_after_s(answer.headers.get("Retry-After"))
            return Answer(f"the receiver answered {answer.status_code}", after)
