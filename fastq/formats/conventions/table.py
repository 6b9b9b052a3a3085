"""The table of conventions, and which formats the systems have."""

from __future__ import annotations

from types import MappingProxyType
from typing import cast

from fastq.formats.conventions import frameworks, lessons, media, models, science, vectors
from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QType
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
        choices = ", ".join(CONVENTIONS)
        text = shown(convention)
        hint = did_you_mean(convention, CONVENTIONS, _SPELLINGS)
        raise ValueError(f"convention must be one of {choices}, or a fastq.Convention, not {text}{hint}") from None


def check_written(convention: Convention, qtype: QType) -> None:
    """Raise ValueError for codes of 32 bits unless the system of a convention has them."""
    if qtype.bits > 16 and qtype.name not in convention.formats:
        choices = " or ".join(repr(row.name) for row in CONVENTIONS.values() if qtype.name in row.formats)
        raise ValueError(f"convention must be {choices} for dtype {qtype}, not {convention.name!r}")


def check_format(convention: Convention, qtype: QType) -> None:
    """Raise ValueError unless the system of a convention supports the format."""
    formats = convention.formats
    if (qtype.element or qtype.block_size) and qtype.name not in formats and convention.name != DEFAULT:
        names = [DEFAULT, *(row.name for row in CONVENTIONS.values() if qtype.name in row.formats)]
        choices = " or ".join(map(repr, names))
        raise ValueError(f"convention must be {choices} for dtype {qtype}, not {convention.name!r}")
    if qtype.element and convention.zero_point != "integer":
        raise ValueError(
            f"convention {convention.name!r} has zero points that are not codes, which dtype {qtype} requires"
        )
    if formats and qtype.format not in formats:
        raise ValueError(f"dtype must be one of {', '.join(formats)} for convention {convention.name!r}, not {qtype}")
