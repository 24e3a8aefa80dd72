"""Runs a coroutine on an event loop in a thread, as a plugin's process would, while the test plays the runtime."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

DEADLINE_S = 30.0


class PluginThread:
    """``result()`` is what the coroutine returned; leaving the context cancels it."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._main = main
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._main())
        self._loop.call_soon(self._ready.set)
        with contextlib.suppress(asyncio.CancelledError, Exception):
            self._loop.run_until_complete(self._task)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something else on the plugin's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    def result(self) -> Any:
        self._thread.join(DEADLINE_S)
        assert self._task is not None and self._task.done(), "the plugin still runs"
        return self._task.result()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> PluginThread:
        self._thread.start()
        assert self._ready.wait(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None and not self._task.done():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(DEADLINE_S)


def eventually(condition: Callable[[], Any], what: str = "condition") -> Any:
    """The condition's value once it is true; for states that nothing announces."""
    end = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(0.005)
    return value
