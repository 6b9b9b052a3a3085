"""What is private to others is named in one place, and checked."""

import ast
import importlib.metadata
import tomllib
from pathlib import Path

import pytest
import requirements

import fastq

PROJECT = Path(fastq.__file__).parent.parent / "pyproject.toml"


def test_everything_named_exists_here():
    assert requirements.missing(requirements.PRIVATE) == []
    assert requirements.missing((requirements.Private("numpy", "", "", ("numpy:nothing", "no.such:thing")),)) == [
        "numpy:nothing",
        "no.such:thing",
    ]


def private_imports(path):
    """Names that a file imports from Numba's insides."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("numba.")
            and node.module != "numba.extending"
        ):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_everything_that_is_imported_is_named():
    root, rows = Path(fastq.__file__).parent, requirements.PRIVATE
    missed = [
        (file, name)
        for path in sorted(root.rglob("*.py"))
        for file in [path.relative_to(root).as_posix()]
        for name in private_imports(path)
        if not any(
            file.startswith(place) and any(f"{each.replace(':', '.')}.".startswith(f"{name}.") for each in row.names)
            for row in rows
            for place in row.used_by.split(", ")
        )
    ]
    assert missed == []


@pytest.mark.parametrize("owner", ["numpy", "numba", "llvmlite"])
def test_installed_versions_are_those_that_were_checked(owner):
    assert requirements.is_checked(owner, importlib.metadata.version(owner))


def test_bounds_of_the_package_are_what_was_checked():
    if not PROJECT.exists():
        pytest.skip("the package is installed")
    project = tomllib.loads(PROJECT.read_text())["project"]
    versions = requirements.VERSIONS
    assert f"numpy>={versions['numpy'].lowest},<{versions['numpy'].below}" in project["dependencies"]
    assert f"numba>={versions['numba'].lowest}" in project["dependencies"]
    assert project["requires-python"] == f">={versions['python'].lowest}"
