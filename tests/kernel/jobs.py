"""Running jobs in tests, and holding a worker at a known place without changing anything in it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

from nri_warmup.inject.job import WarmJob
from nri_warmup.inject.zygote import Injector
from nri_warmup.model.outcome import Outcome, Progress


def warm(job: WarmJob) -> Outcome:
    """One job with an injector of its own, from start to close."""

    async def main() -> Outcome:
        async with Injector() as injector:
            return await injector.run(job)

    return asyncio.run(main())


class Held:
    """A worker that has entered its target and waits for the lease of its first large file, which the test holds.

    That is the ordinary wait of a job for another job's file, if a longer one, so what is seen is the worker as it
    always is.
    """

    def __init__(self, injector: Injector, lease: Path) -> None:
        self.injector = injector
        self.lease = lease
        self._fd = os.open(lease, os.O_RDWR)

    def hold(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def worker_pid(self) -> int:
        zygote = self.injector.zygote_pid
        children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        assert len(children) == 1
        return int(children[0])


def while_held(tmp_path: Path, job: WarmJob, look: Callable[[Held], Awaitable[None] | None]) -> Outcome:
    """Run ``job``, call ``look`` while its worker waits for a lease, let it go on, and give the outcome.

    The job must want one file of at least 2 MiB, of the name model.bin.
    """

    async def main() -> Outcome:
        lease = tmp_path / "lease"
        lease.touch()
        async with Injector(lease_path=str(lease), lease_wait_s=60) as injector:
            held = Held(injector, lease)
            held.hold()
            waiting = asyncio.Event()
            try:

                def tell(progress: Progress) -> None:
                    if progress.current.endswith("/model.bin"):
                        waiting.set()

                task = asyncio.create_task(injector.run(job, None, tell))
                entered = asyncio.create_task(waiting.wait())
                await asyncio.wait([task, entered], timeout=20, return_when=asyncio.FIRST_COMPLETED)
                assert waiting.is_set(), task.result() if task.done() else "the worker never reported"
                result = look(held)
                if result is not None:
                    await result
            finally:
                held.release()
            return await task

    return asyncio.run(main())
