"""RabbitMQ's queues through the adapter, against aio-pika itself: rates, latency, recovery.

    .venv/bin/python -m bench.rabbit [RECORDS]

Records of 1 KiB in batches of 100, quorum queues, every one persistent, mandatory and confirmed, on
both sides; consumers with prefetch 100 ack one by one. Both sides take turns on one server.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import aio_pika
from tests.integration.rabbit_server import RabbitServer, running

from holdfast._base.ids import fresh_token
from holdfast.amqp.broker import Broker
from holdfast.amqp.contract import Message
from holdfast.amqp.topology import QueueSpec

RECORD = b"x" * 1024
BATCH, PREFETCH, ROUNDS, SINGLES = 100, 100, 3, 300
Rates = tuple[float, float]


def adapter_rates(server: RabbitServer, records: int) -> Rates:
    """Return records per second, published and consumed, through the adapter."""
    with Broker(server.url()) as broker:
        queue = broker.queue(QueueSpec(f"bench-{fresh_token()}"))
        began = time.perf_counter()
        for start in range(0, records, BATCH):
            names = range(start, start + BATCH)
            queue.publish(*(Message(RECORD, message_id=str(name)) for name in names))
        published = records / (time.perf_counter() - began)
        got, all_in = 0, threading.Event()

        def take(_: Message) -> None:
            nonlocal got
            got += 1
            if got == records:
                all_in.set()

        began = time.perf_counter()
        consumer = queue.consume(take, prefetch=PREFETCH)
        all_in.wait()
        consumed = records / (time.perf_counter() - began)
        consumer.stop()
        queue.delete()
    return published, consumed


async def _raw(url: str, records: int) -> Rates:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        quorum = {"x-queue-type": "quorum"}
        queue = await channel.declare_queue(
            f"raw-{fresh_token()}", durable=True, arguments={**quorum}
        )

        async def send(name: int) -> None:
            message = aio_pika.Message(RECORD, message_id=str(name), delivery_mode=2)
            await channel.default_exchange.publish(message, queue.name, mandatory=True)

        began = time.perf_counter()
        for start in range(0, records, BATCH):
            await asyncio.gather(*(send(name) for name in range(start, start + BATCH)))
        published = records / (time.perf_counter() - began)
        reader = await connection.channel()
        await reader.set_qos(prefetch_count=PREFETCH)
        got, all_in = 0, asyncio.Event()

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            nonlocal got
            await message.ack()
            got += 1
            if got == records:
                all_in.set()

        began = time.perf_counter()
        await (await reader.get_queue(queue.name)).consume(take)
        await all_in.wait()
        consumed = records / (time.perf_counter() - began)
        await channel.queue_delete(queue.name)
    return published, consumed


def raw_rates(server: RabbitServer, records: int) -> Rates:
    """Return the same through aio-pika alone."""
    return asyncio.run(_raw(server.url(), records))


def latencies(server: RabbitServer) -> list[float]:
    """Return milliseconds from a publish to its callback, one message at a time."""
    found: list[float] = []
    with Broker(server.url()) as broker:
        queue = broker.queue(QueueSpec(f"bench-{fresh_token()}"))
        arrived = threading.Event()
        consumer = queue.consume(lambda _: arrived.set())
        for number in range(SINGLES):
            arrived.clear()
            began = time.perf_counter()
            queue.publish(Message(RECORD, message_id=str(number)))
            arrived.wait()
            found.append((time.perf_counter() - began) * 1000)
        consumer.stop()
        queue.delete()
    return sorted(found)


def recovery(server: RabbitServer, records: int) -> float:
    """Return seconds from the end of a killed server's start to the first callback."""
    with Broker(server.url(), patience_s=120) as broker:
        queue = broker.queue(QueueSpec(f"bench-{fresh_token()}"))
        for start in range(0, records, BATCH):
            queue.publish(*(Message(RECORD, str(start + n)) for n in range(BATCH)))
        server.settle()
        server.restart()
        began, first = time.perf_counter(), threading.Event()
        consumer = queue.consume(lambda _: first.set())
        first.wait()
        took = time.perf_counter() - began
        consumer.stop()
        queue.delete()
    return took


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    sides: dict[str, Callable[[RabbitServer, int], Rates]] = {
        "raw aio-pika": raw_rates,
        "adapter": adapter_rates,
    }
    seen: dict[str, list[Rates]] = {name: [] for name in sides}
    with running() as server:
        for _ in range(ROUNDS):
            for name, measure in sides.items():
                seen[name].append(measure(server, records))
        for place, what in enumerate(("published", "consumed")):
            rates = {name: median(one[place] for one in some) for name, some in seen.items()}
            share = median(
                ours[place] / raw[place]
                for ours, raw in zip(seen["adapter"], seen["raw aio-pika"], strict=True)
            )
            listed = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items())
            print(f"{what}: {listed}; adapter / raw {share:.2f}")
        times = latencies(server)
        print(f"end to end, one at a time: p50 {median(times):.1f} ms, p99 {times[-3]:.1f} ms")
        print(f"recovery with {records:,} records: {recovery(server, records):.1f} s")


if __name__ == "__main__":
    main()
