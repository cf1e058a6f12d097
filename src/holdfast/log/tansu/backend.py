"""Topics on a Tansu broker that this process starts, watches and stops.

What Tansu lacks is made up for here, the contract does not bend: no DeleteRecords, so truncation is
a mark; on memory and S3 no offsets inside batches, so batches are read as a whole. No transactions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast._base.clock import Clock, SystemClock
from holdfast.errors import LogRefused, LogUnreachable, UsageInvalid
from holdfast.log.contract import QueueEndpoint
from holdfast.log.kafka.backend import KafkaBackend
from holdfast.log.tansu.broker import Broker
from holdfast.log.tansu.settings import TansuSettings, read_settings

READY_TOPIC = "ready"
"""An empty topic in every bucket: that it could be made says that the storage works."""
PROBE_S = 1.0
"""How long one look waits whether a broker that starts serves already."""


class TansuBackend(KafkaBackend):
    """One broker per object: give its endpoint to others, instead of starting another."""

    def __init__(
        self,
        url: str | TansuSettings,
        *,
        clock: Clock | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.broker_settings = read_settings(url) if isinstance(url, str) else url
        clock = clock or SystemClock()
        self.broker = Broker(
            self.broker_settings, clock, os.environ if environment is None else environment
        )
        super().__init__(self.broker_settings.client(self.broker_settings.port), clock=clock)
        self.capabilities = self.broker_settings.capabilities

    def start(self) -> None:
        """Start the broker, unless it runs, and connect to it.

        Raises:
            DependencyMissing: there is no binary.
            LogNotStarted: it does not serve; its output says why.
        """
        if not self.broker.is_running:
            self.broker.start(self._is_ready)
            try:
                self._use(self.broker_settings.client(self.broker.port))
                super().start()
                self._check_storage()
            except BaseException:  # whatever it was, no broker stays that nobody is connected to
                super().stop()
                self.broker.stop(keep_output=True)
                raise
        super().start()

    def _life(self) -> int:
        """Return which life of the broker it is: in memory, a new one begins with nothing.

        Raises:
            LogNotStarted: somebody else has its port.
        """
        if self.broker.has_given_up:
            raise self.broker.trouble()
        return self.broker.restarts if self.broker_settings.engine == "memory" else 0

    def _check_storage(self) -> None:
        """Write something: a broker answers although its bucket is missing."""
        if self.broker_settings.engine != "s3":
            return
        try:
            self.create_topic(READY_TOPIC)
        except (LogRefused, LogUnreachable) as error:
            bucket = self.broker_settings.place
            otherwise = f"bucket {bucket} is missing, or must not be written"
            raise self.broker.trouble(otherwise) from error

    def _is_ready(self, port: int) -> bool:
        """Tell whether a real request is answered."""
        settings = self.broker_settings.client(port)
        probe = KafkaBackend(settings.waiting(PROBE_S))
        try:
            probe.start()
        except LogUnreachable:
            return False
        probe.stop()
        return True

    def stop(self) -> None:
        """Let go of all connections, and end the broker."""
        super().stop()
        self.broker.stop()

    def endpoint(self) -> QueueEndpoint:
        """Return how others connect, while this process runs."""
        if not self.broker.port:
            raise UsageInvalid(what="the broker is not started", remedy="Call start() first.")
        return super().endpoint()
