"""Docstrings of everything public, by the rules of numpydoc, and the page that lists them."""

import inspect
import re
from pathlib import Path

import pytest
from numpydoc.validate import validate

import fastq
from fastq.system import imports

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^   ((?:\w+\.)*\w+)$", PAGE, re.MULTILINE)
CORNERS = ("dask", "gguf", "io", "kernels", "layouts", "plot", "testing", "xarray", "zarr")
EXCEPT = {
    "SA01": "See Also: the page of the API groups functions by purpose",
    "ES01": "an extended summary only where there is more to say",
    "PR04": "types of parameters that are as in another function, which is named",
    "RT02": "taken for one result without a type: `lo, hi : ndarray` are two",
}
OF_CLASSES = EXCEPT | {"PR01": "fields of dataclasses are under Attributes"}
OF_METHODS = EXCEPT | {"EX01": "the class has an example"}
CLASSES = [name for name in fastq.__all__ if inspect.isclass(getattr(fastq, name))]
OF_TABLES = ("QType", "Convention", "MSERange")  # rows, whose methods are for the library
METHODS = [
    f"{name}.{method}"
    for name in CLASSES
    if name not in OF_TABLES
    for method, value in vars(getattr(fastq, name)).items()
    if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)))
]


@pytest.mark.parametrize("name", [*LISTED, *METHODS])
def test_docstrings_are_complete(name):
    corner = name.split(".")[0]
    if corner in ("dask", "xarray", "zarr"):
        pytest.importorskip(corner, reason=f"no {corner}")
    if corner in CORNERS:
        imports.module(f"fastq.{corner}")
    allowed = OF_METHODS if name in METHODS else OF_CLASSES if name.split(".")[-1][0].isupper() else EXCEPT
    found = validate(f"fastq.{name}")["errors"]
    assert [error for error in found if error[0] not in allowed] == []


def test_everything_public_is_listed():
    public = set(fastq.__all__) - {*CORNERS, "CONVENTIONS", "reference"}
    for corner in CORNERS:
        module = pytest.importorskip(f"fastq.{corner}", reason=f"no {corner}", exc_type=ImportError)
        names = getattr(module, "__all__", None) or [
            n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__
        ]
        public |= {f"{corner}.{name}" for name in names if not name.startswith("_")}
    assert public - {"layouts.LAYOUTS"} == set(LISTED)


@pytest.mark.parametrize("name", CLASSES)
def test_fields_with_a_default_value_are_no_links(name):
    """In single backticks Sphinx would look for a page of such a field, and fail."""
    of = getattr(fastq, name)
    documented = [of, *(each for key, each in vars(of).items() if not key.startswith("_"))]
    linked = {word for each in documented for word in re.findall(r"(?<!`)`(\w+)`(?!`)", inspect.getdoc(each) or "")}
    fields = {key for key, value in vars(of).items() if not callable(value) and not inspect.isdatadescriptor(value)}
    assert not linked & fields
