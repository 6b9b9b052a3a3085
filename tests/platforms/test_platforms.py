"""The laboratory's tables, what it takes of Debian's packages, and how kernels are handed to another process."""

import pickle
import sys

import pytest
from requirements import VERSIONS

from tests.platforms import compiled_elsewhere, debian, environments
from tests.platforms.__main__ import commands
from tests.platforms.machines import MACHINES


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_machines_have_what_they_need(machine):
    assert set(machine.runs) <= set(commands(60, 0))
    assert bool(machine.python) == bool(machine.suite)
    assert bool(machine.emulated) == bool(machine.triple)
    assert not machine.emulated or (machine.cpu and machine.compiler.python == machine.python)


def test_pythons_are_those_that_the_package_is_for():
    low, high = (tuple(map(int, bound.split("."))) for bound in VERSIONS["python"])
    machines = [tuple(map(int, machine.python.split("."))) for machine in MACHINES.values() if machine.python]
    assert all(low <= version < high for version in machines)
    assert max(machines)[1] == high[1] - 1


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


def test_a_program_is_called_by_its_own_name(tmp_path):
    import subprocess

    script = environments._script(tmp_path / "python", sys.executable)
    done = subprocess.run([script, "-c", "import sys; print(sys.argv)", "a b"], capture_output=True, text=True)
    assert done.stdout == "['-c', 'a b']\n"


def test_functions_are_handed_over_by_name():
    from fastq.kernels import build
    from fastq.kernels.traversal.runs import runs

    for function in (runs, runs.py_func, build.kernel_address):
        assert pickle.loads(compiled_elsewhere.pickled(function)) is function
