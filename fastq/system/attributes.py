"""Properties: computed once, or forwarded to a part of the object."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """A cached property like that of functools, without the lock that it has in Python 3.11."""

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.attrname, self.func(instance))


class Forwarded(property, Generic[T]):
    """A property that is an attribute of a part: `path` is the text after the dot, such as "qparams.scale"."""

    def __init__(self, path: str, doc: str) -> None:
        super().__init__(operator.attrgetter(path))
        self.__doc__ = doc

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: Any = None) -> T: ...  # type: ignore[override]
