"""Copies of the package with a text in them replaced, for processes that import these."""

import os
import shutil
from pathlib import Path

import fastq


def copy_of_package(tmp_path: Path) -> Path:
    """Return a folder with a copy of the package."""
    package = tmp_path / "house"
    shutil.copytree(Path(fastq.__file__).parent, package / "fastq", ignore=shutil.ignore_patterns("__pycache__"))
    return package


def edit(path: Path, right: str, wrong: str) -> None:
    """Replace a text of a file, which it has to have."""
    source = path.read_text()
    assert right in source
    path.write_text(source.replace(right, wrong))


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports the package from there."""
    return os.environ | {"PYTHONPATH": str(folder)}
