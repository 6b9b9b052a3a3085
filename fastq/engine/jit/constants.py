"""Arguments of compiled functions that are nothing at run time: attributes of their types are constants."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from numba import types
from numba.core.extending import models, register_model
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr


class Constants(types.Opaque):  # type: ignore[misc]
    """Type of an argument that is nothing at run time; any function reads attributes that are numbers or types.

    A subclass is a dataclass without an order and `eq` of its own: its name has all fields, since machine code is kept
    on disk under that.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        register_model(cls)(models.OpaqueModel)

    def __post_init__(self) -> None:
        values = ", ".join(repr(getattr(self, each.name)) for each in fields(self))
        super().__init__(name=f"{type(self).__name__}({values})")


@infer_getattr
class _Attributes(AttributeTemplate):  # type: ignore[misc]
    key = Constants

    def generic_resolve(self, kind: Constants, name: str) -> types.Type:
        return self.context.resolve_value_type_prefer_literal(getattr(kind, name))


@lower_getattr_generic(Constants)  # type: ignore[untyped-decorator]
def _attribute(context: Any, builder: Any, kind: Constants, value: Any, name: str) -> Any:
    found = getattr(kind, name)
    if isinstance(found, types.Type):
        return context.get_dummy_value()
    return context.get_constant_generic(builder, context.typing_context.resolve_value_type(found), found)
