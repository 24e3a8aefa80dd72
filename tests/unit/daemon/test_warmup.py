"""The warmer: turns, quotas, shared room, and jobs that do not get on.

The host is a folder with the few files of /proc and /sys that are read; workers are scripted, so that a test says when
one announces what it wants, reads, or ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nri_warmup.daemon.registry import Entry
from nri_warmup.daemon.warmup import Warmer
from nri_warmup.inject.job import WarmJob
from nri_warmup.kernel.root import Root
from nri_warmup.model.lifecycle import Container, Pod
from nri_warmup.model.outcome import Outcome, OutcomeState, Progress
from nri_warmup.model.plan import WarmFiles, WarmupPlan
from nri_warmup.model.profile import Config, Limits, Mode, NodeLimits
from nri_warmup.observe.metrics import Registry as Metrics

MI = 1 << 20
GI = 1 << 30
READAHEAD = 128 << 10
PLAN = WarmupPlan(
    profile="model", deadline_s=60.0, reserve_bytes=0, actions=(WarmFiles(patterns=("/models/**",), max_bytes=1 << 44),)
)


class ScriptedWorkers:
    """Stands for the injector: each job runs until the test ends it."""

    def __init__(self) -> None:
        self.jobs: dict[str, WarmJob] = {}
        self._tell: dict[str, Callable[[Progress], None]] = {}
        self._ends: dict[str, asyncio.Future[Outcome]] = {}
        self._read: dict[str, int] = {}

    async def run(self, job: WarmJob, pidfd: int, on_progress: Callable[[Progress], None]) -> Outcome:
        self.jobs[job.id] = job
        self._tell[job.id] = on_progress
        self._ends[job.id] = asyncio.get_running_loop().create_future()
        on_progress(Progress())
        return await self._ends[job.id]

    async def cancel(self, job_id: str) -> None:
        self.end(job_id, OutcomeState.CANCELLED)

    def say(self, job_id: str, *, wanted: int, read: int = 0) -> None:
        self._read[job_id] = read
        self._tell[job_id](Progress(wanted_bytes=wanted, read_bytes=read, resident_bytes=read, files=1))

    def end(self, job_id: str, state: OutcomeState = OutcomeState.DONE) -> None:
        end = self._ends.get(job_id)
        if end is not None and not end.done():
            end.set_result(Outcome(state=state, read_bytes=self._read.get(job_id, 0)))


class Host:
    """A v2 host: a pod with containers ``a``, ``b`` … of one namespace, whose process is the test's own."""

    def __init__(self, folder: Path, limits: Limits, **options: Any) -> None:
        self.folder = folder
        self.workers = ScriptedWorkers()
        self.write("proc/self/mountinfo", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.write("proc/meminfo", f"MemTotal: {64 * MI} kB\nMemAvailable: {48 * MI} kB\n")
        self.write("sys/fs/cgroup/cgroup.controllers", "memory\n")
        self.write("sys/block/sda/queue/read_ahead_kb", f"{READAHEAD >> 10}\n")
        self.level("pod", "max")
        self.warmer = Warmer(injector=self.workers, root=Root(str(folder)), metrics=Metrics(), **options)  # type: ignore[arg-type]
        self.warmer.use_limits(Config(limits=limits, node=NodeLimits(reserve_bytes=0)))
        self.entries: dict[str, Entry] = {}
        self.tasks: dict[str, asyncio.Task[Outcome]] = {}

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def level(self, path: str, limit: int | str) -> None:
        """``limit`` is what there is room for: the readahead that is left free comes on top."""
        self.write(f"sys/fs/cgroup/{path}/memory.max", f"{limit + READAHEAD if isinstance(limit, int) else limit}\n")
        self.write(f"sys/fs/cgroup/{path}/memory.current", "0\n")
        self.write(f"sys/fs/cgroup/{path}/memory.stat", "anon 0\nfile 0\n")

    def begin(self, name: str, *, namespace: str = "x", mode: Mode = Mode.ENFORCE) -> asyncio.Task[Outcome]:
        """Every job's process is this one; its cgroup is looked up when its job begins."""
        self.level(f"pod/{name}", "max")
        self.write(f"proc/{os.getpid()}/cgroup", "".join(f"0::/pod/{n}\n" for n in (*self.entries, name)))
        entry = Entry(
            pod=Pod(id="p", name="p", namespace=namespace),
            container=Container(id=name, pod_id="p", name=name, pid=os.getpid()),
            plan=replace(PLAN, mode=mode),
        )
        self.entries[name] = entry
        self.tasks[name] = asyncio.create_task(self.warmer.warm(entry))
        return self.tasks[name]

    async def under_way(self, *names: str) -> None:
        await until(lambda: set(names) <= set(self.workers.jobs))

    async def idle(self) -> None:
        """Everything that can happen without the test doing something has happened."""
        for _ in range(20):
            await asyncio.sleep(0)

    def budget(self, name: str) -> int:
        found = self.workers.jobs[name].budget_bytes
        assert found is not None
        return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


Scenario = Callable[[Host], Coroutine[Any, Any, None]]


def play(tmp_path: Path, scenario: Scenario, *, stalled_s: float = 60.0, **limits: Any) -> None:
    async def main() -> None:
        host = Host(tmp_path, Limits(**{"jobs": 8, "namespace_jobs": 8, **limits}), stalled_s=stalled_s)
        async with asyncio.timeout(20):
            await scenario(host)
            for name in host.tasks:
                host.workers.end(name)
            await asyncio.gather(*host.tasks.values())

    asyncio.run(main())


def test_room_that_two_share_is_given_once(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.level("pod", 10 * GI)
        host.begin("a")
        await host.under_way("a")
        assert host.budget("a") == 10 * GI
        host.begin("b")
        await host.idle()
        assert "b" not in host.workers.jobs  # waits for what a wants
        host.workers.say("a", wanted=7 * GI)
        await host.under_way("b")
        assert host.budget("b") == 3 * GI
        host.workers.say("b", wanted=3 * GI)
        host.workers.say("a", wanted=7 * GI, read=7 * GI)
        host.begin("c")
        await host.under_way("c")
        assert host.budget("c") == 0  # what a has read is still what it warms

    play(tmp_path, scenario)


def test_jobs_that_begin_at_once_are_given_room_one_after_the_other(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.level("pod", 10 * GI)
        for name in "abc":
            host.begin(name)
        for name, budget in (("a", 10), ("b", 6), ("c", 2)):
            await host.under_way(name)
            await host.idle()
            assert list(host.workers.jobs)[-1] == name
            assert host.budget(name) == budget * GI
            host.workers.say(name, wanted=4 * GI)

    play(tmp_path, scenario)


def test_the_host_is_shared_by_all(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.begin("a", namespace="x")
        await host.under_way("a")
        first = host.budget("a")
        host.workers.say("a", wanted=20 * GI)
        host.begin("b", namespace="y")
        await host.under_way("b")
        assert host.budget("b") == first - 20 * GI
        assert [job.group for job in host.workers.jobs.values()] == ["x", "y"]

    play(tmp_path, scenario)


def test_a_job_that_ends_gives_its_room_back(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.level("pod", 10 * GI)
        host.begin("a")
        await host.under_way("a")
        host.begin("b")
        await host.idle()
        host.workers.end("a")
        await host.under_way("b")
        assert host.budget("b") == 10 * GI

    play(tmp_path, scenario)


def test_who_does_not_say_what_it_wants_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_warmup.policy.claim.ANNOUNCE_S", 0.05)

    async def scenario(host: Host) -> None:
        host.level("pod", 10 * GI)
        host.begin("a")
        await host.under_way("a")
        host.begin("b")
        await host.under_way("b")
        assert host.budget("b") == 10 * GI

    play(tmp_path, scenario)


def test_a_wait_for_another_s_word_can_be_cancelled(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.begin("a")
        await host.under_way("a")
        task = host.begin("b")
        await host.idle()
        host.warmer.cancel(host.entries["b"])
        assert (await task).state is OutcomeState.CANCELLED
        assert "b" not in host.workers.jobs
        assert host.warmer.load() == (1, 0)

    play(tmp_path, scenario)


def test_a_cancel_between_a_turn_and_its_job_is_not_lost(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.begin("a")
        await host.under_way("a")
        task = host.begin("b")
        await host.idle()
        host.workers.say("a", wanted=GI)  # b's turn has come, and its task has not run yet
        host.warmer.cancel(host.entries["b"])
        assert (await task).state is OutcomeState.CANCELLED
        assert "b" not in host.workers.jobs

    play(tmp_path, scenario)


def test_a_task_that_is_cancelled_as_its_turn_comes_does_not_begin(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.begin("a")
        await host.under_way("a")
        task = host.begin("b")
        await host.idle()
        host.workers.say("a", wanted=GI)
        task.cancel()
        assert (await task).state is OutcomeState.CANCELLED
        assert "b" not in host.workers.jobs

    play(tmp_path, scenario)


def test_measuring_takes_no_room_and_no_quota(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.level("pod", 10 * GI)
        host.begin("a", mode=Mode.OBSERVE)
        await host.under_way("a")
        host.workers.say("a", wanted=9 * GI)
        host.begin("b")
        await host.under_way("b")
        assert host.budget("b") == 5 * GI

    play(tmp_path, scenario, namespace_bytes=5 * GI)


def test_a_quota_does_not_make_warm_ups_serial(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.begin("a")
        await host.under_way("a")
        assert host.budget("a") == 5 * GI
        host.begin("b")
        await host.idle()
        assert host.warmer.load() == (1, 1)
        host.workers.say("a", wanted=2 * GI)
        await host.under_way("b")
        assert host.budget("b") == 3 * GI

    play(tmp_path, scenario, namespace_bytes=5 * GI)


def test_files_that_grow_past_the_quota_end_their_job(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.begin("a")
        await host.under_way("a")
        host.workers.say("a", wanted=2 * GI)
        host.begin("b")
        await host.under_way("b")
        host.workers.say("b", wanted=2 * GI)
        host.workers.say("a", wanted=3 * GI, read=GI)
        await host.idle()
        assert not host.tasks["a"].done()
        host.workers.say("a", wanted=4 * GI, read=GI)
        outcome = await host.tasks["a"]
        assert outcome.state is OutcomeState.OVER_BUDGET
        assert "limits.namespace_bytes" in outcome.reason

    play(tmp_path, scenario, namespace_bytes=5 * GI)


def test_a_container_that_goes_while_it_is_warmed_leaves_no_quota_behind(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        for name in "abc":
            host.begin(name)
            await host.under_way(name)
            assert host.budget(name) == 5 * GI
            host.workers.say(name, wanted=5 * GI, read=4 * GI)
            host.warmer.cancel(host.entries[name])
            host.warmer.forget(host.entries[name])
            assert (await host.tasks[name]).state is OutcomeState.CANCELLED

    play(tmp_path, scenario, namespace_bytes=5 * GI)


def test_a_job_that_does_not_get_on_lets_others_run(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.level("pod", 10 * GI)
        host.begin("a")
        await host.under_way("a")
        host.workers.say("a", wanted=8 * GI, read=GI)
        host.begin("b")
        await host.under_way("b")
        assert host.warmer.load() == (2, 0)
        assert host.budget("b") == 9 * GI  # what it has not read is not kept for it
        assert not host.tasks["a"].done()

    play(tmp_path, scenario, stalled_s=0.15, jobs=1)


def test_a_job_that_gets_on_keeps_its_slot(tmp_path: Path) -> None:
    async def scenario(host: Host) -> None:
        host.begin("a")
        await host.under_way("a")
        host.begin("b")
        for step in range(1, 60):
            host.workers.say("a", wanted=40 * GI, read=step * 100 * MI)
            await asyncio.sleep(0.02)
        assert "b" not in host.workers.jobs
        host.workers.end("a")
        await host.under_way("b")

    play(tmp_path, scenario, stalled_s=0.6, jobs=1)
