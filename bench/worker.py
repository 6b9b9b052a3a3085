"""One process for each system, driven over a pipe, so that no thread pool disturbs another's.

The parent asks for one thing at a time (`Worker.ask`); the child (`python worker.py SYSTEM`) answers in a line of JSON.
After timing, a child answers only when its threads have stopped spinning, so that an idle worker takes no core from the
next one. The waiting policies stay as they come, because the peers are fastest so: at 2^18 elements
OMP_WAIT_POLICY=PASSIVE made torch 2 to 5 times slower, ACTIVE changed nothing, and allow_spinning=0 made onnxruntime
up to 2 times slower.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import works
from works import Runner

HERE = Path(__file__).parent
THREADS = "2"
SPINNING_AT_MOST = 0.05
SETTLED_WITHIN = 0.5


class Absent(Exception):
    """The system is not there to be measured; the message says why."""


class Worker:
    """The parent's end of the pipe."""

    def __init__(self, system: str) -> None:
        self.system = system
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed by close)
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), system],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=child_environment(),
        )

    def ask(self, **request: Any) -> Any:
        """Run the Child method named by `do` with the other arguments; Absent when it cannot."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            last_words = " ".join(self.errors.read().splitlines()[-1:])
            raise Absent(f"worker ended with code {self.process.returncode}: {last_words}")
        answer = json.loads(line)
        if "absent" in answer:
            raise Absent(answer["absent"])
        return answer["result"]

    def close(self) -> None:
        """Let the child end by itself."""
        with suppress(BrokenPipeError):
            self.process.communicate()
        self.errors.close()


def child_environment() -> dict[str, str]:
    """Two threads for everybody, and this tree's fastq before any other."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"), THREADS)
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    return os.environ | threads | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}


class Child:
    """The child's end: holds at most one runner for each variant."""

    def __init__(self, system: str) -> None:
        self.system = system
        self.runners: dict[str, Runner] = {}

    def version(self) -> str:
        """Import the system and tell which one it is."""
        self.module()
        return str(getattr(sys.modules.get(self.system), "__version__", ""))

    def module(self) -> Any:
        """Find the module that builds this system's runners."""
        return importlib.import_module(f"systems.{self.system}")

    def prepare(self, work: str, size: str, variant: str, check: bool = True) -> str:
        """Build, call once and compare with plain NumPy: '' when equal."""
        self.runners.pop(variant, None)
        runner = self.module().BUILDERS[work, variant](size)
        runner.call()
        self.runners[variant] = runner
        return works.differences(work, size, runner.results()) if check else ""

    def time(self, variant: str, warm: int, samples: int, number: int) -> list[float]:
        """Seconds of one call: `samples` of them, each the mean over `number` calls."""
        call = self.runners[variant].call
        for _ in range(warm):
            call()
        seconds = [_seconds(call, number) for _ in range(samples)]
        settle()
        return seconds

    def release(self) -> None:
        """Give the memory back before another work begins."""
        self.runners.clear()


def _seconds(call: Callable[[], Any], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    return (time.perf_counter() - start) / number


def settle() -> None:
    """Wait until this process uses (almost) no CPU time: pools spin for up to 40 ms after their last task."""
    deadline = time.perf_counter() + SETTLED_WITHIN
    pause = 0.005
    while time.perf_counter() < deadline:
        before = time.process_time()
        time.sleep(pause)
        if time.process_time() - before < SPINNING_AT_MOST * pause:
            return


def reply(child: Child, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": getattr(child, request.pop("do"))(**request)}
    except ModuleNotFoundError as error:
        return {"absent": "not installed" if error.name == child.system else f"cannot run: {error}"}
    except Exception as error:
        return {"absent": f"cannot run: {type(error).__name__}: {str(error).strip().splitlines()[:1]}"}


def main(system: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    child = Child(system)
    for line in sys.stdin:
        answers.write(json.dumps(reply(child, json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
