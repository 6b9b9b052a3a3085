"""The convention of lessons and notebooks."""

from __future__ import annotations

from fastq.formats.conventions.convention import Convention

ROWS = (
    Convention(
        "textbook",
        "Lessons and notebooks: scale = (max - min) / (qmax - qmin) in Python floats, x / scale + zero_point rounded",
        includes_zero=False,
        parameter_type="float64",
        stored_type="float64",
        degenerate="value",
        zero_point_inside=True,
    ),
)
