"""The table of conventions."""

from __future__ import annotations

from types import MappingProxyType
from typing import cast

from fastq.formats.conventions import frameworks, lessons, media, models, science, vectors
from fastq.formats.conventions.convention import Convention
from fastq.system.arguments import did_you_mean, shown

DEFAULT = "onnx"

_ROWS = (*frameworks.ROWS, *models.ROWS, *vectors.ROWS, *science.ROWS, *media.ROWS, *lessons.ROWS)
CONVENTIONS = MappingProxyType({row.name: row for row in _ROWS})
for _row in _ROWS:
    getattr(_row, "signed_scale")  # noqa: B009 (values derived from the fields are kept with them)


_SPELLINGS = {"pytorch": "torch", "ort": "onnxruntime", "tensorflow": "tflite", "litert": "tflite", "netcdf": "cf"}
_SPELLINGS |= {"nifti": "nibabel", "eccodes": "grib", "pyedflib": "edf", "ncpdq": "nco", "astropy": "fits"}


def as_convention(convention: str | Convention) -> Convention:
    """Return the Convention with a name, or the given one."""
    try:
        return CONVENTIONS[cast(str, convention)]
    except Exception:  # a row, an unknown name, or an object that is not hashable
        if isinstance(convention, Convention):
            return convention
        known = ", ".join(CONVENTIONS)
        text = shown(convention)
        hint = did_you_mean(convention, CONVENTIONS, _SPELLINGS)
        raise ValueError(f"convention must be one of {known}, or a fastq.Convention, not {text}{hint}") from None
