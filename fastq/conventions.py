"""Convention: whose arithmetic to follow, one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Convention:
    """The arithmetic of one system: how it takes parameters from a range and codes from values.

    Attributes
    ----------
    name : str
        What the caller writes.
    """

    name: str


CONVENTIONS = {row.name: row for row in (Convention("onnx"),)}


def as_convention(convention: str | Convention) -> Convention:
    """Return the Convention that a name stands for.

    Raises
    ------
    ValueError
        If it is no row of the table.
    """
    name = convention.name if isinstance(convention, Convention) else convention
    if name not in CONVENTIONS or (name != convention and CONVENTIONS[name] != convention):
        raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, not {convention!r}")
    return CONVENTIONS[name]
