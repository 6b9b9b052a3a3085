"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import fastq

ROOT = Path(fastq.__file__).parent
MODULES = sorted(
    ".".join(["fastq", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)
NEEDED = {"plot": "matplotlib", "dask": "dask", "xarray": "xarray", "zarr": "zarr"}  # by adapters and tools


@pytest.mark.slow("compiles 35 kernels", quick=lambda name: name != "fastq.ops.warmup")
@pytest.mark.parametrize("name", MODULES)
def test_examples_print_what_they_say(name):
    for library in {NEEDED[part] for part in name.split(".") if part in NEEDED}:
        pytest.importorskip(library, reason=f"no {library}")
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert (failed, tried > 0) == (0, True)


def test_every_public_function_has_an_example():
    functions = [getattr(fastq, name) for name in fastq.__all__ if inspect.isfunction(getattr(fastq, name))]
    functions = [f for f in functions if not f.__name__.startswith("get_")]  # their examples are those of set_
    functions += [
        fastq.gguf.quantize,
        fastq.gguf.dequantize,
        *(getattr(fastq.plot, name) for name in fastq.plot.__all__),
    ]
    functions += [fastq.testing.assert_same_codes]
    assert [f.__qualname__ for f in functions if ">>>" not in (f.__doc__ or "")] == []
