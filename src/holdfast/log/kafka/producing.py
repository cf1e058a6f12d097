"""Producing batches that count only when the broker has confirmed all of their records."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast._base.ids import Offset
from holdfast.errors import HoldfastError, UsageInvalid
from holdfast.log.contract import Record
from holdfast.log.kafka.connection import TIMED_OUT, Connection
from holdfast.log.kafka.reader import BATCH_RECORDS_MAX, ID_HEADER

SLICE_S = 0.25
"""Waits are cut into slices, so that a signal is heard."""
Told = Callable[[KafkaError | None, Message], None]
Headers = list[tuple[str, str | bytes | None]]


class Producing:
    """One idempotent producer, one batch at a time: its own retries append once and in order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producing = threading.Lock()
        self._producer: Producer | None = None

    def close(self) -> None:
        """Let go of the connection. No batch is under way then: each call waits for its own."""
        with self._producing:
            self._producer = None

    def send(self, name: str, partition: int, records: Sequence[Record]) -> list[Offset]:
        """Append records in order; returns their offsets when the broker has confirmed all.

        Raises:
            LogUnreachable: some were not confirmed, though some may be there.
            UsageInvalid: one is larger than client or broker takes, likewise.
        """
        offsets: list[Any] = []
        failed: list[KafkaError] = []

        def told(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                offsets.append(offset)
            else:
                # The client takes "duplicate" for success. A broker that died between noting a
                # batch and storing it says so too, when the batch comes again.
                failed.append(error or KafkaError(KafkaError.DUPLICATE_SEQUENCE_NUMBER))

        with self._producing:
            producer = self._producer = self._producer or self._connect()
            try:
                self._enqueue(producer, name, partition, records, told)
                while producer.flush(SLICE_S):
                    self._connection.check()
            except BaseException:  # even when interrupted
                self._drop(producer)
                raise
            if failed or len(offsets) != len(records):
                self._refuse(name, records, failed, len(offsets))
        return offsets

    def _connect(self) -> Producer:
        settings = self._connection.settings
        return Producer(
            {
                **settings.client(),
                "enable.idempotence": True,
                "acks": "all",
                # A batch is flushed as soon as it is complete, which ends this wait.
                "linger.ms": 100,
                "message.timeout.ms": int(settings.timeout_s * 1000),
                "retry.backoff.ms": 50,
                "retry.backoff.max.ms": 500,
                "queue.buffering.max.kbytes": 32 << 10,
                "batch.num.messages": BATCH_RECORDS_MAX if settings.reads == "batch" else 10_000,
                "error_cb": self._connection.hear,
            }
        )

    def _enqueue(
        self, producer: Producer, name: str, partition: int, records: Sequence[Record], told: Told
    ) -> None:
        produce = producer.produce
        for record in records:
            value, key = record.value, record.key or None
            headers = _headers_of(record) if record.headers or record.record_id else None
            while True:
                try:
                    if headers is None:  # which is quicker
                        produce(name, value, key, partition, told)
                    else:
                        produce(name, value, key, partition, told, headers=headers)
                    break
                except BufferError:
                    producer.poll(SLICE_S)  # the batch is larger than what the client holds
                except KafkaException as error:
                    raise self._refusal(record, error.args[0]) from error

    def _refusal(self, record: Record, cause: KafkaError) -> HoldfastError:
        if cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            what = f"a record of {len(record.value)} bytes is larger than the log takes"
            remedy = "Put the data into a blob and send its name."
            return UsageInvalid(what=what, remedy=remedy)
        return self._connection.trouble(cause)

    def _drop(self, producer: Producer) -> None:
        """Forget a producer with all it holds: nothing of an interrupted batch is sent later."""
        self._producer = None
        producer.purge()

    def _refuse(
        self, name: str, records: Sequence[Record], failed: list[KafkaError], confirmed: int
    ) -> None:
        if self._producer is not None:
            self._drop(self._producer)
        for cause in failed:
            if cause.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                raise _too_large(name, records)
        cause = failed[0] if failed else KafkaError(TIMED_OUT)
        told = f"{confirmed} of {len(records)} records were confirmed"
        raise self._connection.trouble(cause, told=told)


def _too_large(name: str, records: Sequence[Record]) -> UsageInvalid:
    """Return the error of what the client would send, and the broker does not take.

    The broker measures what was sent together: records that are small enough may be too many.
    """
    largest = max(len(record.value) for record in records)
    what = f"{len(records)} records of up to {largest} bytes are larger than topic {name} takes"
    remedy = "Send fewer at once, raise its max.message.bytes, or send names of blobs."
    return UsageInvalid(what=what, remedy=remedy)


def _headers_of(record: Record) -> Headers:
    """Return what a record carries besides key and value."""
    if ID_HEADER in record.headers:
        remedy = "Give the id as record_id, or name the header otherwise."
        raise UsageInvalid(what=f"a record has a header {ID_HEADER}", remedy=remedy)
    headers: Headers = [(name, value.encode("utf-8")) for name, value in record.headers.items()]
    if record.record_id:
        headers.append((ID_HEADER, record.record_id.encode("utf-8")))
    return headers
