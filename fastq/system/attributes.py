"""Attributes of an object that are forwarded to one of its parts."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")


class Forwarded(property, Generic[T]):
    """A property that is an attribute of a part: `path` is the text after the dot, such as "qparams.scale"."""

    def __init__(self, path: str, doc: str) -> None:
        super().__init__(operator.attrgetter(path))
        self.__doc__ = doc

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: Any = None) -> T: ...  # type: ignore[override]
