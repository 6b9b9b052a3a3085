"""Find the launch plan of a call by its key, or have it resolved: the one way from a public function to a kernel.

Resolve, launch, explain. The key is all of a call but the elements of its arrays: types, dtypes, shapes, strides, flags
and options. A call whose key is new is resolved once: its arguments are validated, and a launch plan is made for calls
like it. The plan is then launched with the arrays; the compiled driver checks what only elements tell (scales are
positive and finite, zero points are codes, memory is not shared with the output, no NaN). What the driver refuses goes
to the validation in Python, which explains the error or copies memory that input and output share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fastq.dispatch.validation import as_array
from fastq.system import lazy

Plan = Callable[..., Any]  # called with x, out, scale, zero point and QParams

# module of dispatch that resolves each operation, imported with Numba when a plan is first needed
_RESOLVERS = {
    "quantize": "ranged",
    "fake_quantize": "ranged",
    "choose_qparams": "ranged",
    "quantize_linear": "elementwise",
    "dequantize_linear": "elementwise",
    "quantize_with_qparams": "elementwise",
    "fake_quantize_with_qparams": "elementwise",
    "dequantize": "elementwise",
    "minmax": "reduction",
    "compare_codes": "errors",
    "compare_values": "errors",
    "pack": "subbyte",
    "unpack": "subbyte",
    "gguf_quantize": "gguf",
    "gguf_dequantize": "gguf",
}
_SCALARS = frozenset((type(None), int, float, np.float32, np.float64))


class PlanCache:
    """Plans by key, in two generations: what is looked up moves to the recent one, the older one is dropped as a whole.

    No lock: threads that insert at once lose at most a generation, which is resolved again.
    """

    def __init__(self, size: int = 2048) -> None:
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Drop all plans: they are for another number of threads, or for the threads of a parent process."""
        self.recent: dict[Any, Plan] = {}
        self.older: dict[Any, Plan] = {}

    def get(self, key: Any) -> Plan | None:
        """Return the plan of a key, None where there is none."""
        plan = self.recent.get(key)
        if plan is None and (plan := self.older.get(key)) is not None:
            self.insert(key, plan, self.recent)
        return plan

    def insert(self, key: Any, plan: Plan, recent: dict[Any, Plan]) -> None:
        """Keep a plan that was resolved when `recent` was in use; if it no longer is, the plan may be outdated."""
        if recent is not self.recent:
            return
        if len(recent) >= self.size // 2:
            self.older, self.recent = recent, {key: plan}
        else:
            recent[key] = plan


plans = PlanCache()


def call(operation: str, x: Any, out: Any, scale: Any, zero_point: Any, qparams: Any, *options: Any) -> Any:
    """Launch the plan of a call, which is resolved if there is none yet.

    Parameters
    ----------
    operation : str
        A row of the table of resolvers.
    x : array_like
        The array that is read first.
    out, scale, zero_point : Any
        As the caller gave them.
    qparams : QParams or None
        Passed on to the plan. What a plan may depend on has to be among the options too.
    *options : Any
        As the caller gave them, in the order in which the resolver takes them.
    """
    if type(x) is not np.ndarray:
        x = as_array(x, _FIRST_ARGUMENT.get(operation, "x"))
    recent = plans.recent
    key: Any = _key(operation, x, out, scale, zero_point, options)
    try:
        plan = plans.get(key)
    except TypeError:  # an option or a parameter without a hash
        key = plan = None
    if plan is None:
        plan = _resolver(operation)(x, out, scale, zero_point, qparams, *options)
        if key is not None:
            plans.insert(key, plan, recent)
    return plan(x, out, scale, zero_point, qparams)


# how the public functions call their first array, for error messages
_FIRST_ARGUMENT = {
    "dequantize_linear": "codes",
    "dequantize": "codes",
    "pack": "codes",
    "unpack": "packed",
    "gguf_quantize": "data",
    "gguf_dequantize": "data",
}


def _key(operation: str, x: Any, out: Any, scale: Any, zero_point: Any, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Build the key of the plan cache from types, dtypes, shapes, strides, flags and options.

    Options go with their types, since True == 1 == 1.0; so do those in a tuple.
    """
    types: tuple[Any, ...] = tuple(map(type, options))
    if tuple in types:
        types += tuple(tuple(map(type, option)) for option in options if type(option) is tuple)
    return (
        operation,
        x.dtype,
        x.shape,
        x.strides,
        x.flags.num,
        _described(out),
        _described(scale),
        _described(zero_point),
        options,
        types,
    )


def _described(operand: Any) -> Any:
    """Return what a plan may depend on: the type of a scalar, the metadata of an array, nothing with a hash of others."""
    kind = type(operand)
    if kind in _SCALARS:
        return kind
    if isinstance(operand, np.ndarray):
        return kind, operand.dtype, operand.shape, operand.strides, operand.flags.num
    return kind if isinstance(operand, np.generic) else _WITHOUT_HASH


_WITHOUT_HASH: list[None] = []  # lists and the like are converted at each call


def _resolver(operation: str) -> Callable[..., Plan]:
    resolver: Callable[..., Plan] = getattr(lazy.module(f"fastq.dispatch.{_RESOLVERS[operation]}"), operation)
    return resolver
