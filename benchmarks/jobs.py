"""Many runs side by side: trained, evaluated and collected as they come, and stopped at a limit of time.

Each run is one process, forked from a server that has imported the package already, so that twenty of them do not begin
with twenty imports. What is finished is not done again, and whatever a stopped run has left goes on with the same call.
Evaluations that time something wait until all others are through, and run one at a time.
"""

import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import results

LOADED = ("depthwise.cli.main", "depthwise.training.run", "depthwise.evaluation", "transformers")
"""What all processes need, imported once."""
PAUSE = 0.05
"""Seconds between two looks at what runs."""
GRACE = 5.0
"""Seconds in which a process that has to stop may write what it has."""


@dataclass(frozen=True)
class Evaluation:
    """One result of a run: its name, what follows ``depthwise evaluate RUN``, and commands before it."""

    name: str
    arguments: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    """Other commands that it needs, such as ``("calibrate", "{run}", "--quality-drop", "0.5")``."""
    is_alone: bool = False
    """Whether nothing else may run meanwhile."""

    def commands(self, run: str) -> Iterator[list[str]]:
        for command in self.before:
            yield [word.replace("{run}", run) for word in command]
        yield ["evaluate", run, *self.arguments, "--name", self.name]


@dataclass(frozen=True)
class Job:
    """One run: what trains it, what it is evaluated on, and the names of runs that have to be there before."""

    name: str
    recipe: str
    changes: tuple[str, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return shlex.join(["depthwise", "train", self.recipe, *self.changes])

    def missing(self, runs: Path, extra: Sequence[str] = (), *, alone: bool = False) -> list[list[str]]:
        """The commands that are still to be run: those of training and of evaluations, or those that run alone."""
        folder, found = runs / self.name, []
        if not alone and not (folder / "training.json").exists():
            found.append(["train", self.recipe, *self.changes, *extra, "--out", str(folder)])
        for evaluation in self.evaluations:
            if evaluation.is_alone == alone and not (folder / "results" / f"{evaluation.name}.json").exists():
                found.extend(evaluation.commands(str(folder)))
        return found


def lines_of(jobs: Iterable[Job], runs: Path, extra: Sequence[str] = ()) -> Iterator[str]:
    """The commands as one would type them."""
    for job in jobs:
        yield f"{job.command} {shlex.join(extra)}".rstrip() + f" --out {runs / job.name}"
        for evaluation in job.evaluations:
            yield from (shlex.join(["depthwise", *command]) for command in evaluation.commands(str(runs / job.name)))


@dataclass
class Campaign:
    """Jobs on their way. ``run`` returns 0 where all of them arrived."""

    jobs: Sequence[Job]
    runs: Path
    record: Path
    extra: Sequence[str] = ()
    at_once: int = 1
    seconds: float = float("inf")
    _running: dict[str, BaseProcess] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _diverged: set[str] = field(default_factory=set)
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> int:
        usual = signal.signal(signal.SIGTERM, _stop)
        try:
            for alone in (False, True):
                self._all(alone)
        finally:
            self._end()
            signal.signal(signal.SIGTERM, usual)
        for name, reason in self._failed.items():
            print(f"{name} {reason}; the same command goes on from there", file=sys.stderr)
        return int(bool(self._failed))

    def _all(self, alone: bool) -> None:
        waiting = {job.name: job for job in self.jobs if not alone or self._is_trained(job.name)}
        for job in [job for job in waiting.values() if not job.missing(self.runs, alone=alone)]:
            del waiting[job.name]
            self._collect(job)
        jobs = dict(waiting)
        while waiting or self._running:
            if self._left <= 0:
                self._end()
                self._failed.update(dict.fromkeys([*waiting, *self._collected(jobs)], "was not finished in time"))
                return
            for name in self._ended():
                self._collect(jobs[name])
            for name, reason in self._hopeless(waiting).items():
                del waiting[name]
                self._failed[name] = reason
            for job in self._ready(waiting, 1 if alone else self.at_once):
                del waiting[job.name]
                self._start(job, alone)
            time.sleep(PAUSE)

    @property
    def _left(self) -> float:
        return self.seconds - (time.monotonic() - self._began)

    def _ready(self, waiting: Mapping[str, Job], at_once: int) -> list[Job]:
        ready = [job for job in waiting.values() if all(map(self._is_trained, job.needs))]
        return ready[: at_once - len(self._running)]

    def _is_trained(self, name: str) -> bool:
        return (self.runs / name / "training.json").exists()

    def _hopeless(self, waiting: Mapping[str, Job]) -> dict[str, str]:
        """Those who need a run that was not trained and will not be."""
        over = {name for name in (*self._failed, *self._diverged) if not self._is_trained(name)}
        return {
            name: f"needs {missed[0]}, which failed"
            for name, job in waiting.items()
            if (missed := [need for need in job.needs if need in over])
        }

    def _start(self, job: Job, alone: bool) -> None:
        commands, log = job.missing(self.runs, self.extra, alone=alone), self.runs / f"{job.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = max(1, (os.cpu_count() or 1) // (1 if alone else min(self.at_once, len(self.jobs))))
        process = _context().Process(target=_run_commands, args=(commands, str(log), threads))
        process.start()
        self._running[job.name] = process
        self._say(job.name, "alone" if alone else "begins")

    def _ended(self) -> Iterator[str]:
        for name, process in list(self._running.items()):
            if process.is_alive():
                continue
            process.join()
            del self._running[name]
            if process.exitcode:
                self._failed[name] = f"failed, see {self.runs / name}.log"
            self._say(name, "failed" if process.exitcode else "done")
            yield name

    def _collect(self, job: Job) -> None:
        """What a run has so far; one that diverged has failed and is a result all the same."""
        try:
            found = results.collected(self.runs / job.name)
        except (results.NoRun, FileNotFoundError):
            return
        results.add(self.record, [found])
        if found["diverged"]:
            self._failed.pop(job.name, None)
            self._diverged.add(job.name)

    def _collected(self, jobs: Mapping[str, Job]) -> Iterator[str]:
        """What was stopped, its results so far collected."""
        for name in list(self._running):
            del self._running[name]
            self._collect(jobs[name])
            yield name

    def _end(self) -> None:
        """Ask whoever still runs to stop, and do not ask twice."""
        for process in self._running.values():
            process.terminate()
        end = time.monotonic() + GRACE
        for process in self._running.values():
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def _say(self, name: str, what: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {name} {what}", flush=True)


def _context() -> Any:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(list(LOADED))
    return context


def _run_commands(commands: Sequence[Sequence[str]], log: str, threads: int) -> None:
    """One command after the other in this process; all they say goes to a file.

    Where training fails there is nothing to evaluate; an evaluation that fails does not keep others from being made.
    """
    import torch

    from depthwise.cli.main import main

    torch.set_num_threads(threads)
    with open(log, "a", buffering=1, encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    failed = False
    for command in commands:
        print("$ depthwise", shlex.join(command), flush=True)
        sys.argv = ["depthwise", *command]
        try:
            main()
        except SystemExit as stop:
            failed |= bool(stop.code)
        if failed and command[0] == "train":
            break
    sys.exit(failed)


def _stop(number: int, _: Any) -> None:
    sys.exit(128 + number)
