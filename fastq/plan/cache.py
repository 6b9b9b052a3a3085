"""Find the launch plan of a call by its key, or have it resolved: the one way from a public function to a kernel.

The key is everything in a call except the elements of its arrays: types, dtypes, shapes,
strides, flags and options. A call with a new key is resolved once: its arguments are validated, and a launch plan is
made for calls like it. The plan is then launched with the arrays. The compiled driver checks the elements and the
memory (scales are positive and finite, zero points are codes, memory is not shared with the output, no NaN). A call
that the driver refuses goes to the validation in Python, which explains the error or copies memory that input and
output share.

From a public function to its kernel, name by name, where calls go through a record, a string or an address:

1. The public function in fastq/ops/ hands its record, an `Operation`, to `run_operation`. For a new key `_resolve`
   calls the record's `resolve`: the function `_resolve_...` right above the record. The bound call that it returns, an
   inner function such as `quantize_by_range`, is called at the end of `run_operation`.
2. That has fastq/plan/ make a plan, or makes it itself where no other operation has the like: by_range.py,
   by_parameters.py and others choose a loop, by a string such as "traversal.runs.runs", and a class of operands, such
   as `ElementOperands`, and hand both to `load_or_compile_kernel` of plan/kernel_call.py.
3. Where the machine code is not there yet, this imports `compile_loop` of kernels/build.py and has it called. There
   `loop_by_name` imports the function that the string names: `runs` of kernels/traversal/runs.py.
4. The loop visits elements, and calls the body of its operands for each run of them (`run`) or for each register
   (`compute`). `with_body` in kernels/pointers.py names the module in kernels/body/ by the operands, `import_body` of
   kernels/build.py imports it, and the last lines of that module put its functions into `BODIES`: ``convert`` for
   `ElementOperands`.
5. The address of the compiled loop goes into the words of a `LaunchPlan`. `bind` of engine/runtime/driver.py joins
   these with the compiled driver, `drive` of engine/runtime/drive.py. What `bind` returns is the `launch` of a
   `BoundLaunch`, plan/launch.py, which the bound call of step 1 calls.
6. `drive` checks the operands and hands the address of each launch, with addresses of the arrays, to `run` of
   engine/runtime/workers.py. That has the threads of the pool, or by `run_alone` this thread only, claim chunks, and
   calls the address for each chunk by `call_c` of engine/runtime/instructions.py. The address is that of `entry` of
   kernels/build.py. For strided memory it is that of a tiler of engine/runtime/tiles.py instead, which copies each tile
   of its chunk to contiguous memory, calls `entry` on that, also by `call_c`, and copies the result back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from fastq.engine.runtime import threadpool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QType
from fastq.formats.range_methods import MSERange
from fastq.plan import adapters
from fastq.requests.stochastic_rounding import Noise
from fastq.system.arrays_of_callers import as_array

# A plan with its threads and checks, as the plan cache keeps it. It takes its arguments by position, since a call
# by keyword takes 40 ns more, and arguments of any names 200: the four operands, which `Operation.operands` names, then
# one argument beside them, and, if codes are rounded at random, the random numbers.
#
#     operations of fastq/ops                          first    second    third         fourth        fifth      sixth
#     quantize, fake_quantize                          x        out       importance                             noise
#     choose_qparams                                   x                  importance
#     quantize, fake_quantize with qparams             x        out       scale         zero_point    qparams    noise
#     quantize_linear                                  x        out       scale         zero_point               noise
#     dequantize, dequantize_linear                    codes    out       scale         zero_point    qparams
#     compare                                          x        q         scale         zero_point    qparams
#     requantize                                       acc      out       multiplier    zero_point    bias
#     unpack_array                                     codes    out       scale_factor  add_offset
#     gguf.quantize                                    data     out       importance
#     parameters of known ranges                       lo       hi
#     all others                                       x        out
#
# Where there is nothing, a call has None.
BoundCall = Callable[..., Any]

_IMMUTABLE = frozenset((type(None), bool, int, float, str, QType, Convention, MSERange))
_C_CONTIGUOUS = 0x1  # NPY_ARRAY_C_CONTIGUOUS: strides follow from the shape
_SCALARS = frozenset((type(None), int, float, np.float32, np.float64, np.int8, np.uint8))


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, since it is part of the key of the plan cache
class Operation:
    """An operation of fastq: everything that is known of it before a caller gives arguments.

    Each public function that launches kernels has such a record in its module of `fastq.ops`, below the function that
    resolves its calls, such as BITROUND in ops/bitround.py.

    Attributes
    ----------
    name : str
        The name of this record in its module.
    function : str
        The public function as callers write it after ``fastq.``, for errors.
    resolve : callable
        Takes a `Call` and its operands, validates everything that dtypes, shapes and options tell, and returns a
        `BoundCall`.
    options : type
        The named tuple of the options, with their defaults.
    operands : tuple of str
        The arrays and numbers as the public function calls them, in the order of `run_operation`.
    labels : str
        How a result for a DataArray gets its labels back: "codes", "elements" or "ranges"; empty if it gets none.
    """

    name: str
    function: str
    resolve: Callable[..., BoundCall]
    options: type[Any]
    operands: tuple[str, ...]
    labels: str = ""

    def __reduce__(self) -> tuple[Callable[..., Operation], tuple[str, str]]:
        """Pickle the place of the record, so that a task of dask gets the one of its process."""
        return _record, (self.resolve.__module__, self.name)


def _record(module: str, name: str) -> Operation:
    """Import a module, if that is not done yet, and return its record: what pickle calls for an `Operation`."""
    __import__(module)
    record: Operation = getattr(sys.modules[module], name)
    return record


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
threadpool.when_changed(plans.clear)


def run_operation(
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
    bias: Any = None,
) -> Any:
    """Run an operation on operands by the plan of such calls; the call is resolved if there is no plan yet.

    Parameters
    ----------
    operation : Operation
        What is called.
    x, y, a, b : object
        The operands, in the order of `Operation.operands`: see the table at `BoundCall`.
    options : tuple
        The options as the caller gave them, in the order of `Operation.options`, the axis first.
    types : tuple of type
        The types of the first options, which are numbers, since True == 1 == 1.0.
    qparams : QParams, optional
        Parameters, which are passed on to the plan. What a plan may depend on in them is among the options, too.
    shape : tuple of int, optional
        The shape of the values, if packed codes do not determine it.
    noise : Noise, optional
        The random numbers for rounding, on which no plan depends.
    bias : ndarray or DataArray, optional
        The bias of `fastq.requantize`. What a plan may depend on in it is among the options: `key_of_bias`.
    """
    if type(x) is not ndarray:
        if (adapter := adapters.adapter_of(x)) is not None:
            named = operation.options(*options)
            return adapter.take_call(Call(operation, (x, y, a, b), qparams, named, types, shape, noise, bias))
        x = as_array(x, operation.operands[0], has_gaps="gaps" in operation.options._fields)
    recent = plans.recent
    try:
        key = key_of(operation, x, y, a, b, options, types, shape)
        plan = recent.get(key) or plans.from_older(key)
    except Exception:  # an object that is not hashable or can't be inspected: validation explains the error
        key = plan = None
    if plan is None:
        named = operation.options(*options)
        plan = _resolve(Call(operation, (x, y, a, b), qparams, named, types, shape, bias=bias))
        if key is not None and _are_immutable((*options, shape)):
            plans.insert(key, plan, recent)
    if bias is not None:  # only `requantize` has one, in the place of qparams: see the table at `BoundCall`
        return plan(x, y, a, b, bias)
    if noise is not None:
        return plan(x, y, a, b, qparams, noise)
    return plan(x, y, a, b, qparams)


class Call(NamedTuple):
    """The arguments of `run_operation`, as resolvers and adapters take them. No plan may hold its arrays."""

    operation: Operation
    operands: tuple[Any, Any, Any, Any]  # x, y, a and b
    qparams: Any
    options: Any  # the named tuple of the operation
    types: tuple[type, ...]
    shape: Any
    noise: Noise | None = None
    bias: Any = None  # of `fastq.requantize`

    def with_bias(self, bias: ndarray | None) -> Call:
        """Return the same call of `fastq.requantize` with another bias, of which the options have the key."""
        return self._replace(bias=bias, options=self.options._replace(key=key_of_bias(bias)))

    def make(self) -> Any:
        """Make the call."""
        return run_operation(
            self.operation,
            *self.operands,
            options=self.options,
            types=self.types,
            qparams=self.qparams,
            shape=self.shape,
            noise=self.noise,
            bias=self.bias,
        )


def key_of_bias(bias: ndarray | None) -> Any:
    """Return what a plan may depend on in a bias."""
    return None if bias is None else (bias.dtype, bias.shape, bias.strides, bias.flags.num)


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
        operand_type if (operand_type := type(a)) in _SCALARS else _description_of(a),
        operand_type if (operand_type := type(b)) in _SCALARS else _description_of(b),
    )


def _description_of(operand: Any) -> Any:
    """Return what a plan may depend on: the metadata of an array, or the type of a scalar.

    For all else, such as a list, return something that has no hash: looking up the key then fails, and the call is
    resolved each time.
    """
    if isinstance(operand, ndarray):
        return type(operand), operand.dtype, operand.shape, operand.strides, operand.flags.num
    return type(operand) if isinstance(operand, np.generic) else _WITHOUT_HASH


_WITHOUT_HASH: list[None] = []  # an argument that is not an array is converted at each call


def _are_immutable(options: tuple[Any, ...]) -> bool:
    """Whether no option can come to mean something else later, so that a plan for these options holds for good.

    An object with an `__index__` of its own can. So can a class of the caller's that has a `dtype` attribute, by which
    NumPy takes it for a dtype: the attribute may be set again. Classes with a metaclass, such as ``jax.numpy.float32``,
    are dtypes in the same way, but nobody changes them.
    """
    for option in options:
        option_type = type(option)
        if option_type is type:
            stays_as_it_is = option in _IMMUTABLE or issubclass(option, np.generic)
        elif issubclass(option_type, tuple):
            stays_as_it_is = _are_immutable(option)
        else:
            stays_as_it_is = option_type in _IMMUTABLE or issubclass(
                option_type, np.number | np.bool_ | np.dtype | type | IntEnum
            )
        if not stays_as_it_is:
            return False
    return True


def _resolve(arguments: Call) -> BoundCall:
    """Return the plan of a call, which is made in the standard floating-point mode."""
    operation = arguments.operation
    # `resolve` is the function `_resolve_...` above the operation's record, in its module of fastq/ops
    return in_standard_mode(operation.resolve)(arguments, *arguments.operands[: len(operation.operands)])
