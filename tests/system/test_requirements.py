"""What is private to others: named in one place, checked, and done without where it does not fit."""

import ast
import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from subprocesses import finish, run, start

import fastq
from fastq.system import requirements

PROJECT = Path(fastq.__file__).parent.parent / "pyproject.toml"

CALLS = """
for size in (1000, 1 << 17):
    Case(size).check()
x = np.linspace(-3, 3, 96, dtype=np.float32).reshape(3, 32)
for dtype, options in [("int4", dict(axis=1, block_size=16)), ("uint8", dict(axis=0)), ("mxfp4", {})]:
    q, expected = fastq.quantize(x, dtype, **options), reference.quantize(x, dtype, **options)
    assert q.codes.tobytes() == expected.codes.tobytes() and q.scale.tobytes() == expected.scale.tobytes()
"""


def test_everything_named_exists_here():
    assert requirements.missing(requirements.ALWAYS + requirements.SHORT_PIPELINE) == []
    assert requirements.missing((requirements.Private("numpy", "", "", ("numpy:nothing", "no.such:thing")),)) == [
        "numpy:nothing",
        "no.such:thing",
    ]


def private_imports(path):
    """Names that a file imports from Numba's insides."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("numba.core", "numba.np")):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_everything_that_is_imported_is_named():
    root, rows = Path(fastq.__file__).parent, requirements.ALWAYS + requirements.SHORT_PIPELINE
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
    for owner in ("numpy", "numba"):
        assert f"{owner}>={versions[owner].lowest},<{versions[owner].below}" in project["dependencies"]
    assert project["requires-python"] == f">={versions['python'].lowest}"


@pytest.mark.parametrize(
    ("version", "fits"), [("0.61.2", False), ("0.62.0", True), ("0.68.1", True), ("0.69.0rc1", False)]
)
def test_the_short_pipeline_is_for_the_versions_that_were_checked(version, fits):
    assert requirements.short_pipeline_misfit(version) == (
        "" if fits else f"it was checked with Numba from 0.62 on and below 0.69, not with {version}"
    )


def test_a_name_that_numba_no_longer_has(monkeypatch):
    row = requirements.Private("numba", "fastq.engine.jit.pipeline", "", ("numba.core.codegen:JITCodeLibrary._gone",))
    monkeypatch.setattr(requirements, "SHORT_PIPELINE", (row,))
    misfit = requirements.short_pipeline_misfit.__wrapped__("0.68.1")
    assert misfit == "Numba 0.68.1 has no numba.core.codegen:JITCodeLibrary._gone"


@pytest.mark.slow("compiles kernels by Numba's own pipeline")
def test_numbas_own_pipeline_is_used_with_one_warning_where_the_short_one_does_not_fit(tmp_path):
    code = """
    import warnings, numba
    numba.__version__ = "0.99.0"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fastq.quantize_linear(np.ones(9, np.float32), 0.5, 0, "int8").tolist() == [2] * 9
        assert fastq.minmax(np.ones(9, np.float32)) == (1, 1)
    print(*[f"{each.category.__name__}: {each.message}" for each in caught], sep="\\n")
    """
    (line,) = finish(start(code, NUMBA_CACHE_DIR=tmp_path), 300).splitlines()
    assert line.startswith("RuntimeWarning: fastq compiles by Numba's own pipeline")
    assert "below 0.69, not with 0.99.0" in line
    assert not list(tmp_path.rglob("*.code"))


@pytest.mark.slow("compiles 10 kernels by Numba's own pipeline")
def test_numbas_own_pipeline_gives_the_same_bits(tmp_path):
    settings = {"NUMBA_NUM_THREADS": 2, "NUMBA_CACHE_DIR": tmp_path, "FASTQ_COMPILER": "numba"}
    finish(start(CALLS, options=["-W", "error"], **settings), 600)
    assert not list(tmp_path.rglob("*"))


def test_no_other_compiler_can_be_chosen():
    code = """
    try:
        fastq.minmax(np.ones(9))
    except ImportError as error:
        print(error)
    """
    assert run(code, FASTQ_COMPILER="gcc") == "FASTQ_COMPILER must be \"numba\" or not set, not 'gcc'\n"
