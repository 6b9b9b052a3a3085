"""Find the launch plan of a call by its key, or have it resolved: the one way from a public function to a kernel.

The key is everything in a call except the elements of its arrays: types, dtypes, shapes,
strides, flags and options. A call with a new key is resolved once: its arguments are validated, and a launch plan is
made for calls like it. The plan is then launched with the arrays. The compiled driver checks the elements and the
memory (scales are positive and finite, zero points are codes, memory is not shared with the output, no NaN). A call
that the driver refuses goes to the validation in Python, which explains the error or copies memory that input and
output share.

From a public function to its kernel, name by name, where calls go through a record, a string or an address:

1. The public function in fastq/ops/ hands its record, an `Operation`, to `call`. For a new key `_resolve` calls the
   record's `resolve`: the function `_resolve_...` right above the record.
2. That has fastq/plan/ make a plan: by_range.py, by_parameters.py and others choose a loop, by a string such as
   "traversal.runs.runs", and a class of operands, such as `ElementOperands`, and hand both to `kernel_address` of
   plan/kernel_call.py.
3. This is `kernel_address` of kernels/build.py, looked up by its name where the machine code is not there yet. There
   `loop_by_name` imports the function that the string names: `runs` of kernels/traversal/runs.py.
4. The loop visits elements, and calls the body of its operands for each run of them. `with_body` in kernels/pointers.py
   names the module in kernels/body/ by the operands, `import_body` of kernels/build.py imports it, and the last lines
   of that module put its functions into `BODIES`: ``convert`` for `ElementOperands`.
5. The address of the compiled loop goes into the words of a `LaunchPlan`. `bind` of engine/runtime/driver.py joins
   these with the compiled driver, `drive` of engine/runtime/drive.py, which calls the address with parts of the arrays:
   `entry` of kernels/build.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QType
from fastq.formats.range_methods import MSERange
from fastq.plan import adapters
from fastq.plan.operation import BoundCall, Operation
from fastq.requests.stochastic_rounding import Noise
from fastq.system.arguments import as_array

_IMMUTABLE = frozenset((type(None), bool, int, float, str, QType, Convention, MSERange))
_C_CONTIGUOUS = 0x1  # NPY_ARRAY_C_CONTIGUOUS: strides follow from the shape
_SCALARS = frozenset((type(None), int, float, np.float32, np.float64, np.int8, np.uint8))


class PlanCache:
    """Plans by key, in two generations: what is looked up moves to the recent one, the older one is dropped as a whole.

    There is no lock: threads that insert at once lose at most a generation, which is resolved again.
    """

    def __init__(self, size: int = 2048) -> None:
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Drop all plans: they are for another number of threads, or for the threads of a parent process."""
        self.recent: dict[Any, BoundCall] = {}
        self.older: dict[Any, BoundCall] = {}

    def from_older(self, key: Any) -> BoundCall | None:
        """Return the plan of a key from the older generation and move it, or None if there is no plan."""
        plan = self.older.get(key)
        if plan is not None:
            self.insert(key, plan, self.recent)
        return plan

    def insert(self, key: Any, plan: BoundCall, recent: dict[Any, BoundCall]) -> None:
        """Keep a plan that was resolved when `recent` was in use; if it no longer is, the plan may be outdated."""
        if recent is not self.recent:
            return
        if len(recent) >= self.size // 2:
            self.older = recent
            self.recent = {key: plan}
        else:
            recent[key] = plan


plans = PlanCache()


def call(
    operation: Operation,
    x: Any,
    y: Any = None,
    a: Any = None,
    b: Any = None,
    options: tuple[Any, ...] = (),  # no bare * before it: defaults of keyword-only parameters take 50 ns longer
    types: tuple[type, ...] = (),
    qparams: Any = None,
    shape: Any = None,
    noise: Noise | None = None,
) -> Any:
    """Launch the plan of a call; the call is resolved if there is no plan yet.

    Parameters
    ----------
    operation : Operation
        What is called.
    x, y, a, b : object
        The operands, in the order of `Operation.operands`.
    options : tuple
        The options as the caller gave them, in the order of `Operation.options`, the axis first.
    types : tuple of type
        The types of the first options, which are numbers, since True == 1 == 1.0.
    qparams : QParams, optional
        Parameters, which are passed on to the plan. The parts on which a plan may depend are among the options, too.
    shape : tuple of int, optional
        The shape of the values, if packed codes do not determine it.
    noise : Noise, optional
        The random numbers for rounding, on which no plan depends.
    """
    if type(x) is not ndarray:
        if (adapter := adapters.adapter_of(x)) is not None:
            arguments = Call(operation, (x, y, a, b), qparams, operation.options(*options), types, shape, noise)
            return adapter.call(arguments)
        x = as_array(x, operation.operands[0])
    recent = plans.recent
    try:
        key = key_of(operation, x, y, a, b, options, types, shape)
        plan = recent.get(key) or plans.from_older(key)
    except Exception:  # an object that is not hashable or can't be inspected: validation explains the error
        key = plan = None
    if plan is None:
        plan = _resolve(Call(operation, (x, y, a, b), qparams, operation.options(*options), types, shape))
        if key is not None and _are_immutable((*options, shape)):
            plans.insert(key, plan, recent)
    return plan(x, y, a, b, qparams) if noise is None else plan(x, y, a, b, qparams, noise)


class Call(NamedTuple):
    """The arguments of `call`, as resolvers and adapters take them. No plan may hold its arrays."""

    operation: Operation
    operands: tuple[Any, Any, Any, Any]  # x, y, a and b
    qparams: Any
    options: Any  # the named tuple of the operation
    types: tuple[type, ...]
    shape: Any
    noise: Noise | None = None

    def make(self) -> Any:
        """Make the call."""
        return call(
            self.operation,
            *self.operands,
            options=self.options,
            types=self.types,
            qparams=self.qparams,
            shape=self.shape,
            noise=self.noise,
        )


def key_of(
    operation: Operation,
    x: ndarray,
    y: Any,
    a: Any,
    b: Any,
    options: tuple[Any, ...],
    types: tuple[type, ...],
    shape: Any,
) -> Any:
    """Build the key of the plan cache from types, dtypes, shapes, strides, flags and options.

    A tuple of axes is followed by their types. This is one expression, since each call of a function takes 60 ns.
    """
    return (
        operation,
        options,
        types,
        (*map(type, options[0]),) if types and types[0] is tuple else shape,
        x.dtype,
        x.shape,
        flags := x.flags.num,
        None if flags & _C_CONTIGUOUS else x.strides,
        None
        if y is None
        else (y.dtype, y.shape, flags := y.flags.num, None if flags & _C_CONTIGUOUS else y.strides)
        if type(y) is ndarray
        else _description_of(y),
        kind if (kind := type(a)) in _SCALARS else _description_of(a),
        kind if (kind := type(b)) in _SCALARS else _description_of(b),
    )


def _description_of(operand: Any) -> Any:
    """Return what a plan may depend on: metadata of an array, type of a scalar; of a list something without a hash."""
    if isinstance(operand, ndarray):
        return type(operand), operand.dtype, operand.shape, operand.strides, operand.flags.num
    return type(operand) if isinstance(operand, np.generic) else _WITHOUT_HASH


_WITHOUT_HASH: list[None] = []  # an argument that is not an array is converted at each call


def _are_immutable(options: tuple[Any, ...]) -> bool:
    """Whether no option can come to mean something else, as an object with an `__index__` of its own can.

    A caller's class is a dtype by an attribute that may change; those of JAX, with their own class, do not change.
    """
    for option in options:
        kind = type(option)
        if kind is type:
            known = option in _IMMUTABLE or issubclass(option, np.generic)
        elif issubclass(kind, tuple):
            known = _are_immutable(option)
        else:
            known = kind in _IMMUTABLE or issubclass(kind, np.number | np.bool_ | np.dtype | type | IntEnum)
        if not known:
            return False
    return True


def _resolve(arguments: Call) -> BoundCall:
    """Return the plan of a call, which is made in the standard floating-point mode."""
    operation = arguments.operation
    # `resolve` is the function `_resolve_...` above the operation's record, in its module of fastq/ops
    return in_standard_mode(operation.resolve)(arguments, *arguments.operands[: len(operation.operands)])
