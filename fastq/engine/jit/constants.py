"""Arguments of compiled functions that are nothing at run time: attributes of their types are constants."""

from __future__ import annotations

from dataclasses import fields

from numba import types


class Constants(types.Opaque):  # type: ignore[misc]
    """Type of an argument that is nothing at run time; any function reads attributes that are numbers or types.

    A subclass is a dataclass without an order and `eq` of its own: its name has all fields, since machine code is kept
    on disk under that.
    """

    def __post_init__(self) -> None:
        values = ", ".join(repr(getattr(self, field.name)) for field in fields(self))
        super().__init__(name=f"{type(self).__name__}({values})")
