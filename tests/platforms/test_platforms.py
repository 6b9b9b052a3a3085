"""The laboratory's tables, what it takes of Debian's packages, and how kernels are handed to another process."""

import functools
import pickle
import sys
from pathlib import Path

import called_elsewhere
import numpy as np
import pytest
from requirements import VERSIONS

from tests.campaigns import exhaustive
from tests.platforms import __main__ as laboratory
from tests.platforms import compiled_elsewhere, debian, environments, patterns
from tests.platforms.__main__ import KINDS, commands
from tests.platforms.machines import MACHINES


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_machines_have_what_they_need(machine):
    assert set(machine.runs) <= set(KINDS) == set(commands(machine, Path(), 60, 1))
    assert machine.python or not machine.suite
    assert bool(machine.emulated) == bool(machine.triple)
    assert not machine.emulated or (machine.cpu and machine.compiler.python == machine.python)


def test_pythons_are_those_that_the_package_is_for():
    low, high = (tuple(map(int, bound.split("."))) for bound in VERSIONS["python"])
    machines = [tuple(map(int, machine.python.split("."))) for machine in MACHINES.values() if machine.python]
    assert {low, *machines} == {(3, minor) for minor in range(low[1], high[1])}


@pytest.fixture
def index():
    made = debian.Index.__new__(debian.Index)
    made.packages = {
        "python": {"Package": "python", "Depends": "libc (>= 2), missing | ssl:any", "Pre-Depends": "awk"},
        "libc": {"Package": "libc"},
        "ssl": {"Package": "ssl", "Depends": "libc"},
        "mawk": {"Package": "mawk", "Provides": "awk (= 1)"},
        "other": {"Package": "other"},
    }
    made.of_provided = {"awk": "mawk"}
    return made


def test_packages_come_with_all_that_they_need(index):
    assert set(index.closure(["python"])) == {"python", "libc", "ssl", "mawk"}


def test_a_machine_without_a_mirror_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(debian, "SOURCES", tmp_path)
    with pytest.raises(FileNotFoundError, match="apt has no source of Debian's packages here"):
        debian.mirror()
    (tmp_path / "sources.list").write_text("deb https://example.org/debian bookworm main\n")
    assert debian.mirror() == "https://example.org/debian"


@pytest.mark.parametrize("found", [False, True])
def test_a_python_that_cannot_be_had_is_told(tmp_path, monkeypatch, capsys, found):
    """Or that is found and does not run; and the other machines are tried."""
    if found:
        environments._script(tmp_path / "python3.12", "false")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["platforms", "python3.12", "python3.12", "--folder", str(tmp_path)])
    assert laboratory.main() == 1
    assert (
        capsys.readouterr().out
        == "python3.12: PATH has no python3.12 that runs, and no suite of Debian's has a package of it\n" * 2
    )


def test_a_program_is_called_by_its_own_name(tmp_path):
    import subprocess

    script = environments._script(tmp_path / "python", sys.executable)
    done = subprocess.run([script, "-c", "import sys; print(sys.argv)", "a b"], capture_output=True, text=True)
    assert done.stdout == "['-c', 'a b']\n"


def test_functions_are_handed_over_by_name():
    from fastq.kernels import build
    from fastq.kernels.traversal.runs import runs

    for function in (runs, runs.function, build.compile_loop):
        assert pickle.loads(compiled_elsewhere.pickled(function)) is function


@pytest.fixture
def elsewhere(monkeypatch):
    """Calls are made in another process of this Python."""
    monkeypatch.setenv(called_elsewhere.VARIABLE, sys.executable)
    yield
    called_elsewhere.other().close()


def test_arrays_are_laid_out_in_another_process_as_here(elsewhere):
    memory = np.full(999, 7, np.uint8)
    whole = memory[13 : 13 + 480].view(np.float32).reshape(6, 20)
    out, x = whole[::-2, 3:11], np.arange(8.0, dtype=np.float32)
    x.flags.writeable = False
    describe = called_elsewhere.function("tests.platforms.test_platforms", "described")
    assert describe([x, out, whole, np.broadcast_to(x, (5, 8))], out=out) == described(
        [x, out, whole, np.broadcast_to(x, (5, 8))], out=out
    )


def described(arrays, *, out):
    """What a function sees of arrays: where they lie, what may be written, which are one."""
    lie = [(a.dtype, a.shape, a.strides, a.flags.writeable, a.ctypes.data % 64, a.tobytes()) for a in arrays]
    together = [a.ctypes.data - out.ctypes.data for a in arrays if np.shares_memory(a, out)]
    return lie, [a is out for a in arrays], together


def test_what_is_written_in_another_process_is_written_here(elsewhere):
    memory = np.zeros(64, np.uint8)
    out = memory[5:61:4].view(np.int8)[::-1]
    assert called_elsewhere.api("numpy").add(np.arange(14, dtype=np.int8), np.int8(1), out=out) is out
    assert memory[5:61:4].tolist() == [*range(14, 0, -1)]
    assert memory.sum() == 105


def test_errors_of_another_process_are_raised_here(elsewhere):
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        called_elsewhere.function("operator", "truediv")(1.0, 0.0)
    with pytest.raises(RuntimeError, match="the other process ended with code 3"):
        called_elsewhere.function("os", "_exit")(3)
    assert called_elsewhere.function("operator", "add")(1, 2) == 3


def test_without_another_process_functions_are_called_here():
    assert called_elsewhere.api("numpy") is np
    assert called_elsewhere.function("numpy", "add") is np.add


def test_patterns_add_up_and_wrong_ones_are_tried_again(tmp_path, monkeypatch, capsys):
    tried, broken = [], {"b"}

    def work(name):
        tried.append(name)
        if name in broken:
            raise exhaustive.Wrong(f"{name} is wrong")
        yield 1000

    jobs = [(patterns.HALVES, name, functools.partial(work, name)) for name in "abc"]
    monkeypatch.setattr(exhaustive, "jobs", lambda: [*jobs, ("quotients", "d", functools.partial(work, "d"))])
    monkeypatch.setattr(sys, "argv", ["patterns", "60", str(tmp_path / "patterns.json")])
    assert patterns.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2,000 values in 3 of 3 pairs of dtypes, 1 wrong"
    broken.clear()
    assert patterns.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3,000 values in 3 of 3 pairs of dtypes, 0 wrong"
    assert tried == ["a", "b", "c", "b"]


def test_what_is_done_is_kept_but_not_of_a_few_cases_alone():
    machine = MACHINES["neoverse-n1"]
    assert commands(machine, Path("x"), 60, 1, 50)["fuzz"][-4:-2] == [
        "--state",
        str(Path("x", "neoverse-n1-fuzz.json")),
    ]
    assert "--state" not in commands(machine, Path("x"), 60, 1, 50, "minmax")["fuzz"]
