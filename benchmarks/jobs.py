"""Many runs side by side: trained, evaluated and collected as they come, and stopped at a limit of time.

Each training and each evaluation is one process, forked from a server that has imported the package already, so that
twenty of them do not begin with twenty imports. What is finished is not done again, and whatever a stopped run has left
goes on with the same call.
"""

import multiprocessing
import os
import runpy
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import results

LOADED = ("depthwise.cli.main", "depthwise.training.run", "depthwise.evaluation", "transformers")
"""What all processes need, imported once."""
TRAIN = "train"
OTHER = "{runs}/"
PAUSE = 0.05
"""Seconds between two looks at what runs."""
GRACE = 5.0
"""Seconds in which a process that has to stop may write what it has."""


@dataclass(frozen=True)
class Evaluation:
    """One result of a run: its name, what follows ``depthwise evaluate RUN``, and commands before it.

    In commands, {run} stands for the folder of the run, and {runs} for the one with all of them.
    """

    name: str
    arguments: tuple[str, ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    """Other commands that it needs, such as ``("calibrate", "{run}", "--quality-drop", "0.5")``."""
    is_alone: bool = False
    """Whether nothing else may run meanwhile."""
    by: tuple[str, ...] = ("evaluate",)
    """What makes it: a command, or a script of this folder such as ``("structure.py", "depths")``."""

    def commands(self, run: str) -> Iterator[list[str]]:
        for command in (*self.before, (*self.by, "{run}", *self.arguments, "--name", self.name)):
            yield [word.replace("{run}", run).replace("{runs}", str(Path(run).parent)) for word in command]

    @property
    def others(self) -> set[str]:
        """Names of other runs that its commands look at."""
        words = (word for command in (*self.before, self.arguments) for word in command)
        return {word.removeprefix(OTHER) for word in words if word.startswith(OTHER)}


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

    def training(self, runs: Path, extra: Sequence[str] = ()) -> "Part":
        command = ["train", self.recipe, *self.changes, *extra, "--out", str(runs / self.name)]
        return Part(self, TRAIN, (command,))

    def missing(self, runs: Path) -> list[Evaluation]:
        """Evaluations whose results are not there."""
        folder = runs / self.name / "results"
        return [each for each in self.evaluations if not (folder / f"{each.name}.json").exists()]


@dataclass(frozen=True)
class Part:
    """What one process does of a job: train it, or make one of its results."""

    job: Job
    what: str
    commands: tuple[list[str], ...]

    @property
    def name(self) -> str:
        return f"{self.job.name} {self.what}"


def lines_of(jobs: Iterable[Job], runs: Path, extra: Sequence[str] = ()) -> Iterator[str]:
    """The commands as one would type them."""
    for job in jobs:
        yield f"{job.command} {shlex.join(extra)}".rstrip() + f" --out {runs / job.name}"
        for evaluation in job.evaluations:
            yield from (_typed(command) for command in evaluation.commands(str(runs / job.name)))


def _is_script(command: Sequence[str]) -> bool:
    return command[0].endswith(".py")


def _typed(command: Sequence[str]) -> str:
    """As one would type it."""
    program = ["python", f"benchmarks/{command[0]}", *command[1:]] if _is_script(command) else ["depthwise", *command]
    return shlex.join(program)


@dataclass
class Campaign:
    """Jobs on their way. ``run`` returns 0 where all of them arrived.

    A job is trained, then all its results are made side by side, then those that change the run before they look at it,
    one after the other, and at last, when nobody else runs or may run, those that need the machine alone.
    """

    jobs: Sequence[Job]
    runs: Path
    record: Path
    extra: Sequence[str] = ()
    at_once: int = 1
    seconds: float = float("inf")
    results_at_once: int | None = None
    """Of those at once, how many may make results, which take more memory than trainings do; none means all."""
    alone_seconds: float = 0.0
    """The last seconds, which belong to results that need the machine alone: whatever else runs then is stopped."""
    _begun: set[str] = field(default_factory=set)
    _running: dict[str, tuple[Part, BaseProcess]] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _start_time: float = field(default_factory=time.monotonic)

    def run(self) -> int:
        usual = signal.signal(signal.SIGTERM, _stop)
        try:
            self._run_all()
        finally:
            self._end()
            signal.signal(signal.SIGTERM, usual)
        for name, reason in self._failed.items():
            print(f"{name} {reason}; the same command goes on from there", file=sys.stderr)
        return int(bool(self._failed))

    def _run_all(self) -> None:
        for job in self.jobs:
            self._collect(job)
        while True:
            for part in self._ended():
                self._collect(part.job)
            is_closing = 0 < self._left <= self.alone_seconds
            if is_closing:
                self._end(alone=False)
            possible = [] if is_closing else [part for job in self.jobs for part in self._possible(job)]
            alone = [] if possible or self._running else [part for job in self.jobs for part in self._alone(job)][:1]
            if not possible and not alone and not self._running:
                break
            if self._left <= 0:
                self._stop_in_time()
                return
            for part in self._next(possible):
                self._start(part, self.at_once)
            for part in alone:
                self._start(part, 1)
            time.sleep(PAUSE)
        if self.alone_seconds and self._left <= self.alone_seconds:
            self._say_what_is_unfinished()
        for job in self.jobs:
            looked_at = (other for each in job.missing(self.runs) for other in each.others)
            needs = looked_at if self._is_trained(job.name) else job.needs
            if missed := [need for need in needs if not self._is_trained(need)]:
                self._failed[job.name] = f"needs {missed[0]}, which was not trained"

    @property
    def _left(self) -> float:
        return self.seconds - (time.monotonic() - self._start_time)

    def _is_trained(self, name: str) -> bool:
        is_running = f"{name} {TRAIN}" in self._running
        return not is_running and (self.runs / name / "training.json").exists()

    def _has_diverged(self, name: str) -> bool:
        """Whether its loss was no number any more in an earlier call: the same training would come to the same."""
        return results.diverged_at(self.runs / name) is not None and not self._is_trained(name)

    def _possible(self, job: Job) -> list[Part]:
        """What may begin now."""
        if not self._is_trained(job.name):
            is_new = bool(self._new([training := job.training(self.runs, self.extra)]))
            is_ready = is_new and all(map(self._is_trained, job.needs)) and not self._has_diverged(job.name)
            return [training] if is_ready else []
        missing = [each for each in self._ready(job) if not each.is_alone]
        if plain := self._new(self._making(job, each) for each in missing if not each.before):
            return plain
        if any(part.job is job for part, _ in self._running.values()):
            return []
        return self._new(self._making(job, each) for each in missing if each.before)[:1]

    def _next(self, possible: Sequence[Part]) -> list[Part]:
        """What there is room for; where time ends, a run without results is worth nothing, so that these go first."""
        evaluations = [part for part in possible if part.what != TRAIN]
        if self.results_at_once is not None:
            being_made = sum(part.what != TRAIN for part, _ in self._running.values())
            evaluations = evaluations[: max(0, self.results_at_once - being_made)]
        trainings = [part for part in possible if part.what == TRAIN]
        return (evaluations + trainings)[: max(0, self.at_once - len(self._running))]

    def _alone(self, job: Job) -> list[Part]:
        if not self._is_trained(job.name):
            return []
        return self._new([self._making(job, each) for each in self._ready(job) if each.is_alone])

    def _ready(self, job: Job) -> list[Evaluation]:
        """Results that are missing and look at no run that is still to come."""
        return [each for each in job.missing(self.runs) if all(map(self._is_trained, each.others))]

    def _making(self, job: Job, evaluation: Evaluation) -> Part:
        return Part(job, evaluation.name, tuple(evaluation.commands(str(self.runs / job.name))))

    def _new(self, parts: Iterable[Part]) -> list[Part]:
        return [part for part in parts if part.name not in self._begun]

    def _start(self, part: Part, at_once: int) -> None:
        log = self.runs / f"{part.job.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = max(1, (os.cpu_count() or 1) // at_once)
        process = _context().Process(target=_run_commands, args=(part.commands, str(log), threads))
        process.start()
        self._begun.add(part.name)
        self._running[part.name] = part, process
        self._say(part.name, "begins")

    def _ended(self) -> Iterator[Part]:
        for name, (part, process) in list(self._running.items()):
            if process.is_alive():
                continue
            process.join()
            del self._running[name]
            if process.exitcode:
                self._failed[name] = f"failed, see {self.runs / part.job.name}.log"
            self._say(name, "failed" if process.exitcode else "done")
            yield part

    def _collect(self, job: Job) -> None:
        """What a run has so far; one that diverged has failed and is a result all the same."""
        try:
            found = results.collected(self.runs / job.name)
        except (results.NoRun, FileNotFoundError):
            return
        results.add(self.record, [found])
        if found["diverged"]:
            self._failed.pop(f"{job.name} {TRAIN}", None)

    def _stop_in_time(self) -> None:
        self._end()
        self._say_what_is_unfinished()

    def _say_what_is_unfinished(self) -> None:
        for job in self.jobs:
            if self._has_diverged(job.name):
                continue
            if not self._is_trained(job.name) or job.missing(self.runs):
                self._failed.setdefault(job.name, "was not finished in time")

    def _end(self, *, alone: bool = True) -> None:
        """Ask whoever still runs to stop, and do not ask twice; what runs alone only if that is meant too."""
        ended = {name: part for name, (part, _) in self._running.items() if alone or not self._is_alone(part)}
        processes = [self._running[name][1] for name in ended]
        for process in processes:
            process.terminate()
        end = time.monotonic() + GRACE
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for name, part in ended.items():
            del self._running[name]
            self._collect(part.job)

    def _is_alone(self, part: Part) -> bool:
        return any(each.name == part.what and each.is_alone for each in part.job.evaluations)

    def _say(self, name: str, what: str) -> None:
        print(f"{time.monotonic() - self._start_time:7.1f} s  {name} {what}", flush=True)


def _context() -> Any:
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(list(LOADED))
    return context


def start_processes_as_usual() -> None:
    """Let this process start others as a plain call does, and not as it was started itself.

    Whoever comes from a fork server starts workers for its batches by a server of its own, which imports everything
    once more: half a minute for every training.
    """
    multiprocessing.set_start_method(None, force=True)


def _run_commands(commands: Sequence[Sequence[str]], log: str, threads: int) -> None:
    """One command after the other in this process, up to the first that fails; all they say goes to a file."""
    import torch

    from depthwise.cli.main import main

    torch.set_num_threads(threads)
    start_processes_as_usual()
    with open(log, "a", buffering=1, encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    for command in commands:
        print("$", _typed(command), flush=True)
        sys.argv = [*command] if _is_script(command) else ["depthwise", *command]
        try:
            if _is_script(command):
                runpy.run_path(str(Path(__file__).with_name(command[0])), run_name="__main__")
            else:
                main()
        except SystemExit as stop:
            if stop.code:
                raise


def _stop(number: int, _: Any) -> None:
    sys.exit(128 + number)
