"""Conventions of packed science data."""

from __future__ import annotations

from fastq.formats.conventions.convention import Convention

ROWS = (
    Convention(
        "cf",
        "CF conventions: packed netCDF data, scale_factor and add_offset; saturated, with a code left for _FillValue",
        formats=("int8", "uint8", "int16", "uint16"),
        schemes=("asymmetric",),
        includes_zero=False,
        parameter_type="float64",
        zero_point="offset",
        offset_code="zero",
        reserves_fill=True,
    ),
)
