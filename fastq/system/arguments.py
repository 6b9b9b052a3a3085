"""Convert arguments to integers, booleans, shapes and dtypes, or raise an error that names the argument.

A caller's object may raise any error whenever it is used: a tensor that requires a gradient when it becomes an array,
one of several elements when it is compared, a proxy of nothing at any time. Here such an error becomes a TypeError, and
the message shows the object in a few characters, even if its `repr` fails.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastq.system import imports
from fastq.system.dtypes import ML_FLOATS

Kind = TypeVar("Kind")

MOST_AXES = 64  # of an array of NumPy
OF_ML_DTYPES = (*ML_FLOATS.values(), "int4", "uint4")  # JAX has these two, one per byte; files do not


class _Short(reprlib.Repr):
    """A `reprlib.Repr` that shows arrays as dtype and shape, and integers of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        """Show an integer, or its width, since Python refuses to write long ones in decimal."""
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"

    def repr_ndarray(self, x: NDArray[Any], level: int) -> str:
        """Show an array by its dtype and shape."""
        return f"an array of {x.dtype} of shape {x.shape}"


_short = _Short()


def shown(value: object) -> str:
    """Return a short text of one line for a value."""
    return _short.repr(value).replace("\n", " ")


def between(least: object, most: object) -> str:
    """Return the smallest and the largest of numbers as text, equal ones once."""
    return str(least) if least == most else f"{least}..{most}"


def is_python(numbers: Any) -> bool:
    """Return whether these are numbers without a NumPy dtype; np.float64 is a subclass of float."""
    return isinstance(numbers, (int, float, list, tuple)) and not isinstance(numbers, np.generic)


def as_int(value: Any, name: str, expected: str = "an int") -> int:
    """Return an integer of Python or NumPy, or another object with `__index__`, as an int."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be {expected}, not {value}")
    try:
        number = operator.index(value)
    except Exception as error:
        raise TypeError(f"{name} must be {expected}, not {shown(value)}") from error
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} must be {expected} that 64 bits hold, not {shown(number)}")
    return number


def as_float(value: Any, name: str, least: float, most: float) -> float:
    """Return a number of Python or NumPy as a float."""
    value_type = type(value)
    if value_type in (bool, np.timedelta64) or not issubclass(value_type, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    # NumPy would round `least` and `most` to the type of a scalar
    number = value.item() if issubclass(value_type, np.float16 | np.float32 | np.integer) else value
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {shown(value)}")
    try:
        return float(number)
    except OverflowError:  # an int too large for a float, if any number is in range
        return math.inf if value > 0 else -math.inf


def as_bool(value: object, name: str) -> bool:
    """Return a bool of Python or NumPy as a Python bool."""
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be a bool, not {shown(value)}")
    return bool(value)


def as_str(value: Any, name: str) -> str:
    """Return a string."""
    if not issubclass(type(value), str):
        raise TypeError(f"{name} must be a string, not {shown(value)}")
    return str.__str__(value)


# by the types of fields, which are texts in modules that postpone the evaluation of annotations
_FIELDS: dict[Any, Callable[[Any, str], Any]] = {"bool": as_bool, "int": as_int, "str": as_str}


def check_fields(record: Any) -> None:
    """Convert the fields of a dataclass that are declared as bool, int or str to plain values."""
    for field in fields(record):
        if field.type in _FIELDS:
            vars(record)[field.name] = _FIELDS[field.type](getattr(record, field.name), field.name)


def as_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """Return a string that is one of the choices."""
    if type(value) is str and value in choices:
        return value
    text = str.__str__(value) if isinstance(value, str) else ""
    if text in choices:
        return text
    hint = did_you_mean(value, choices, {})
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {shown(value)}{hint}")


def as_items(items: Any, name: str, expected: str) -> list[Any]:
    """Return the items of an iterable, at most as many as an array has axes, since an iterator may not end."""
    try:
        first_items = list(islice(items, MOST_AXES + 1))
    except Exception as error:
        raise TypeError(f"{name} must be {expected}, not {shown(items)}") from error
    if len(first_items) > MOST_AXES:
        raise ValueError(f"{name} must be {expected}, at most {MOST_AXES}, not {shown(items)}")
    return first_items


def as_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of int."""
    expected = "a tuple of int"
    sizes = tuple(as_int(size, "shape", expected) for size in as_items(shape, "shape", expected))
    if min(sizes, default=0) < 0:
        raise ValueError(f"shape must not have negative sizes: {sizes}")
    return sizes


def as_axis(axis: Any) -> int | tuple[int, ...] | None:
    """Return axis as an int, a tuple of int or None, without checking that an array has it."""
    expected = "an int, a tuple of int or None"
    if axis is None:
        return None
    if issubclass(type(axis), tuple):
        return tuple(as_int(item, "axis", expected) for item in tuple.__iter__(axis))
    return as_int(axis, "axis", expected)


def as_block_size(block_size: Any, axis: Any) -> int:
    """Return block_size as an int."""
    size = as_int(block_size, "block_size")
    if size < 0:
        raise ValueError(f"block_size must be 0 (no blocks) or positive, not {size}")
    if size and (axis is None or type(axis) is tuple or isinstance(axis, tuple)):
        raise TypeError(f"block_size={size} needs axis to be the one int along which blocks run, not {shown(axis)}")
    return size


def as_dtype(dtype: Any, name: str, expected: str) -> np.dtype[Any]:
    """Return the NumPy dtype of an object; those of other libraries are recognized by name, such as torch.bfloat16."""
    try:
        if dtype is not None and not isinstance(dtype, (np.generic, np.ndarray)):
            return dtype_named(name_of_foreign(dtype)) if _is_foreign(dtype) else np.dtype(dtype)
    except Exception as error:
        raise TypeError(f"{name} must be {expected}, not {shown(dtype)}") from error
    raise TypeError(f"{name} must be {expected}, not {shown(dtype)}")


def _is_foreign(dtype: object) -> bool:
    """Return whether this is a dtype of another library, by the name of its class."""
    return type(dtype).__name__ in ("dtype", "DType") and not isinstance(dtype, np.dtype)


def name_of_foreign(dtype: object) -> str:
    """Return the name of a dtype of another library, without the name of the library."""
    return str(dtype).rpartition(".")[2]


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, of NumPy or of ml_dtypes."""
    return np.dtype(getattr(imports.ml_dtypes(), name) if name in OF_ML_DTYPES else name)


@imports.late
def _get_close_matches() -> Callable[..., list[str]]:
    """Import what only the message of an error needs."""
    from difflib import get_close_matches

    return get_close_matches


def did_you_mean(spelling: object, known: Collection[str], aliases: Mapping[str, str]) -> str:
    """Return the end of an error message: the name that was probably meant, or an empty text."""
    if not isinstance(spelling, str):
        return ""
    lower = str.lower(spelling)
    spelled = {name.lower(): name for name in known}
    similar = _get_close_matches()(lower, spelled, 1)
    likely = aliases.get(lower, *[spelled[name] for name in similar] or [""])
    return f": did you mean {likely}?" if likely else ""


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in the byte order of the machine; a dtype without byte order is unchanged."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def reason(error: Exception) -> str:
    """Return the message of an error in one line; the error of a tensor says to detach it."""
    try:
        return str(error).replace("\n", " ")[:200]
    except Exception:
        return type(error).__name__


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the entries of a JSON object; Python's reader would keep only the last one of a name."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return entries
