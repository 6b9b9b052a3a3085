"""One process for each peer, driven over a pipe, so that no thread pool disturbs another's.

The parent asks for one thing at a time (`Worker.ask`); the child (`python -m bench.worker PEER`) answers in a line of
JSON. A child that crashes or hangs is reported as absent, and started again for the next case.

After timing, a child answers only when its threads have stopped spinning, so that an idle worker takes no core from the
next one. The waiting policies stay as they come, because the peers are fastest so: at 2^18 elements
OMP_WAIT_POLICY=PASSIVE made torch 2 to 5 times slower, ACTIVE changed nothing, and allow_spinning=0 made onnxruntime
up to 2 times slower.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from .cases import LOG2_SIZES, WORKS, Case, case_of, cases
from .data import forget, operands
from .peers import OURS, PEERS, Runner, contenders
from .timing import sampled, settle
from .verify import EXACT, differences

# not from the current folder, where any file could be in the way of a module
PYTHON = (sys.executable, "-P")
# the folder that the package `bench` or `fastq` is in
ROOT = Path(__file__).parents[__package__.count(".") + 1]
ANSWER_WITHIN = 120.0
INSTALLED = "fastq._bench.worker"  # this module in a wheel
NOT_INSTALLED = "not installed"


class Absent(Exception):
    """The peer is not there to be measured; the message says why."""


class Missing(Exception):
    """In the child: what is asked for does not exist in this version of fastq."""


class Figures(NamedTuple):
    """The best and the median time of a call, in seconds."""

    best: float
    median: float

    @classmethod
    def of(cls, seconds: list[float]) -> Figures:
        """Summarise samples."""
        return cls(min(seconds), statistics.median(seconds))


class Worker:
    """The parent's end of the pipe; `installed` is a Python with a fastq of its own, which is used then."""

    def __init__(self, peer: str, threads: int, *, installed: str = "") -> None:
        self.within = ANSWER_WITHIN
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by close)
        self.process = subprocess.Popen(
            [installed, "-P", "-m", INSTALLED, peer] if installed else [*PYTHON, "-m", f"{__package__}.worker", peer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=child_environment(threads, "" if installed else str(ROOT)),
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                self.lines.put(line)
        self.lines.put("")

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self.process.poll() is None

    def ask(self, **request: Any) -> Any:
        """Run the Child method named by `do` with the other arguments; Absent when it cannot."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        try:
            line = self.lines.get(timeout=self.within)
        except queue.Empty:
            self.process.kill()
            self.process.wait()
            raise Absent(f"no answer within {self.within:g} s") from None
        if not line:
            self.process.wait()
            self.errors.seek(0)
            last_words = " ".join(self.errors.read().splitlines()[-1:])
            raise Absent(f"its process ended with code {self.process.returncode}: {last_words}".rstrip(": "))
        answer = json.loads(line)
        if "absent" in answer:
            raise Absent(answer["absent"])
        return answer["result"]

    def close(self) -> None:
        """Let the child end by itself, or end it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(1)
        self.errors.close()


class Workers:
    """The workers of a run by peer, started when they are first needed, and again when they have died."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.of: dict[str, Worker] = {}

    def __getitem__(self, peer: str) -> Worker:
        if peer in self.of and not self.of[peer].alive:
            self.of.pop(peer).close()
        if peer not in self.of:
            self.of[peer] = Worker(peer, self.threads)
        return self.of[peer]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.of.values():
            worker.close()


def child_environment(threads: int, root: str = str(ROOT)) -> dict[str, str]:
    """Say how many threads everybody has, and in which folder fastq is looked for first: this tree's."""
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return os.environ | dict.fromkeys(names, str(threads)) | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


def printed(threads: int, *arguments: str, **environment: str) -> str:
    """What a Python in a process of its own prints; Absent, with its last words, where it fails."""
    command, env = [*PYTHON, *arguments], child_environment(threads) | environment
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=300)
    if done.returncode:
        raise Absent(f"cannot run: {done.stderr.strip().splitlines()[-1][:200]}")
    return done.stdout


# --- the child --------------------------------------------------------------------------------------------------------


class Child:
    """The child's end: holds one runner for each variant."""

    def __init__(self, peer: str) -> None:
        self.peer = PEERS[peer]
        self.runners: dict[str, Runner] = {}

    def version(self) -> str:
        """Import the peer and tell which one it is."""
        importlib.import_module(self.peer.module)
        builders(self.peer.name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            return importlib.metadata.version(self.peer.distribution)
        return ""

    def prepare(self, case: str, variant: str) -> bool:
        """Build, call once and compare with the reference; whether the results are the reference's, bit for bit."""
        self.runners.pop(variant, None)
        runner = self.runners[variant] = checked(self.peer.name, case_of(case), variant)
        return runner.check is None and not differences(case_of(case), runner.results(), EXACT)

    def prepare_again(self, case: str, variant: str) -> None:
        """Build what was compared before, and call it once."""
        self.runners[variant] = builders(self.peer.name)[case_of(case).work.operation, variant](case_of(case))
        self.runners[variant].call()

    def set_threads(self, count: int) -> None:
        """Let fastq, and loops of Numba as the roofline's, use a number of the threads of this process."""
        import numba

        import fastq

        fastq.set_num_threads(count)
        numba.set_num_threads(count)

    def time(self, variant: str, seconds: float) -> list[float]:
        """Seconds of a call, sampled for so long, after calls that are not counted; at least one sample."""
        if variant not in self.runners:
            raise Missing("its process ended and was started again")
        samples = list(sampled(self.runners[variant].call, seconds))
        settle()
        return samples

    def release(self) -> None:
        """Give the memory back before another case begins."""
        self.runners.clear()
        forget()


@cache
def builders(peer: str) -> dict[tuple[str, str], Callable[[Case], Runner]]:
    """Return the builders of a peer by operation and variant of its contenders, as peers/__init__.py names them.

    A function of the operation's name serves all variants, and `prepared` all operations, that have nothing else.
    """
    module = importlib.import_module(f".peers.{peer}", __package__)
    rows = ((case, row) for case in cases(WORKS, LOG2_SIZES[:1]) for row in contenders(case, (peer,)))
    keys = dict.fromkeys((case.work.operation, row.variant) for case, row in rows)
    if hasattr(module, "of_case"):
        return {key: partial(module.of_case, variant=key[1]) for key in keys}
    prepared = getattr(module, "prepared", None)
    made = {key: make for key in keys if (make := getattr(module, key[0], prepared))} | getattr(module, "BUILDERS", {})
    return {key: lambda case, make=make: make(operands(case)) for key, make in made.items()}


def checked(peer: str, case: Case, variant: str) -> Runner:
    """Build a runner that has been called once and whose results are right."""
    try:
        runner = builders(peer)[case.work.operation, variant](case)
        runner.call()
    except (TypeError, AttributeError, NotImplementedError) as error:
        if peer == OURS:
            raise Missing(f"does not do this: {_words(error)}") from error
        raise
    try:
        wrong = runner.check() if runner.check else differences(case, runner.results(), runner.within)
    except (TypeError, AttributeError, NotImplementedError) as error:
        raise Missing(f"nothing to compare with: {_words(error)}") from error
    if wrong:
        raise ValueError(f"WRONG {wrong}")
    return runner


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def reply(child: Child, request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request, with the reason where that is not possible."""
    try:
        return {"result": getattr(child, request.pop("do"))(**request)}
    except Missing as error:
        return {"absent": str(error)}
    except ModuleNotFoundError as error:
        name = error.name or ""
        return {"absent": NOT_INSTALLED if name == child.peer.module else f"needs {name}, which is {NOT_INSTALLED}"}
    except Exception as error:
        return {"absent": _words(error)}


def main(peer: str) -> None:
    """Answer until the pipe is closed; what libraries print is an error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    child = Child(peer)
    for line in sys.stdin:
        answers.write(json.dumps(reply(child, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
