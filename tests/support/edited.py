"""The package with a text of a kernel replaced, and oracles that have to refuse what it computes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from subprocesses import SUPPORT

import fastq


def run_oracle(folder: Path, tmp_path: Path, oracle: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an oracle on a copy of the package, with the cache of all tests: what an edit does not change is in there."""
    command = [sys.executable, "-c", oracle, str(SUPPORT), str(folder), *arguments]
    return subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def copy_of_package(tmp_path: Path) -> Path:
    package = tmp_path / "house"
    shutil.copytree(Path(fastq.__file__).parent, package / "fastq", ignore=shutil.ignore_patterns("__pycache__"))
    return package


def check_refused(tmp_path, changes, *oracle):
    """Assert that an oracle, called with these arguments, refuses kernels with the changes."""
    package = copy_of_package(tmp_path)
    for file, right, wrong in changes:
        path = package / "fastq" / "kernels" / file
        source = path.read_text()
        assert right in source
        path.write_text(source.replace(right, wrong))
    done = run_oracle(package, tmp_path, *oracle)
    assert done.returncode == 1, done.stderr
    assert "AssertionError: different" in done.stderr
