"""An event loop in a thread of its own: asyncio stays in here, callers just wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A running loop. Started when made; `close` ends it and everything that runs in it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # What fails in a library's task reaches us by the futures we wait for; the rest is noise.
        self._loop.set_exception_handler(lambda *_: None)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin `work` in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` in the loop; returns its result. Not to be called by the loop's own thread."""
        return self.submit(work).result()

    def soon(self, function: Callable[[], None]) -> None:
        """Call a function in the loop, soon. Nothing happens once the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # closed meanwhile

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        if self._loop.is_closed():
            return
        self.call(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5) if tasks else None
