"""Launch plans: the kernels of one call in their order, as words that one compiled driver reads.

The driver gets the operands of the call as Python has them. It checks what only their elements and addresses tell,
launches kernels one after the other without the interpreter lock, and stops after one whose status the call refuses.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import boundary, threadpool
from fastq.engine.runtime.boundary import once_made
from fastq.engine.runtime.shared_records import (
    ARGS,
    HEAD,
    HEAD_WORDS,
    LAUNCH,
    LAUNCH_WORDS,
    NONE,
    OUT,
    SCALE,
    UNFIT,
    VALUES,
    ZERO,
    X,
)

__all__ = ["NONE", "OUT", "SCALE", "UNFIT", "VALUES", "ZERO", "X"]

Array = NDArray[Any]


_FLOATS = {np.dtype(np.float32): 4, np.dtype(np.float64): 8}  # parameters whose values are checked, and their bytes

ALL_STATUS = -1  # mask of all bits


class Checks(NamedTuple):
    """The checks of the driver on operands."""

    # bytes of x, out, scale and zero point, none of which may be missing if it has any; out may share none with the
    # others. Of strided memory the bytes from the lowest to the highest one
    nbytes: tuple[int, int, int, int]
    # scales of float32 or float64 must be positive and finite; others are not looked at
    scale: np.dtype[Any] | None = None
    signed: bool = False  # whether scales may be negative too
    zero_point: np.dtype[Any] | None = None  # zero points of float32 or float64 must be finite
    # the first and last code that an integer zero point may be, which is looked at where it is a number or a byte
    codes: tuple[int, int] = (0, 0)
    # types of the NumPy scalars that may stand for a scale and for a zero point
    scalars: tuple[type | None, type | None] = (None, None)
    lowest: tuple[int, int] = (0, 0)  # of x and out, bytes from the first element to the lowest one: 0 or less
    zero: bool = False  # whether scales may be 0 too

    @classmethod
    def of(cls, x: Array, out: Array | None, nbytes: int, scales: int = 0, zeros: int = 0, **others: Any) -> Checks:
        """Return checks of x, of out or a result of `nbytes`, and the bytes of scales and zero points."""
        low_x, nbytes_x = _extent_of(x)
        low_out, nbytes_out = (0, nbytes) if out is None else _extent_of(out)
        return cls((nbytes_x, nbytes_out, scales, zeros), lowest=(low_x, low_out), **others)

    def with_new(self, operand: int, nbytes: int) -> Checks:
        """Return checks in which one of x and out is new memory without gaps."""
        sizes = list(self.nbytes)
        lowest = list(self.lowest)
        sizes[operand] = nbytes
        lowest[operand] = 0
        return self._replace(nbytes=tuple(sizes), lowest=tuple(lowest))  # type: ignore[arg-type]

    def head(self, launches: int) -> NDArray[np.int64]:
        """Return the words that a plan of `launches` launches begins with.

        Types are their addresses, which compiled code compares with the word of an object that has the address of its
        type; 0 is no type.
        """
        scale_type, zero_type = self.scalars
        least_zero, most_zero = self.codes
        lowest_x, lowest_out = self.lowest
        fields = {
            "launches": launches,
            "nbytes": self.nbytes,
            "scale_size": _FLOATS.get(self.scale, 0),
            "scale_flags": int(self.signed) | int(self.zero) << 1,
            "scale_type": id(scale_type) if scale_type else 0,
            "zero_size": self.zero_point.itemsize if self.zero_point is not None else 0,
            "zero_is_float": self.zero_point in _FLOATS,
            "least_zero": least_zero,
            "most_zero": most_zero,
            "zero_type": id(zero_type) if zero_type else 0,
            "lowest_x": lowest_x,
            "lowest_out": lowest_out,
            "array": id(np.ndarray),
            "float": id(float),
            "double": id(np.float64),
            "int": id(int),
            "nothing": id(None),
        }
        return _words_of(HEAD, fields)


def _words_of(record: np.dtype[Any], fields: dict[str, Any]) -> NDArray[np.int64]:
    """Return the words of a record: one tuple, since to set field after field takes twice as long."""
    return np.array([tuple(map(fields.__getitem__, record.names or ()))], record).view(np.int64)


def _extent_of(x: Array) -> tuple[int, int]:
    """Return the bytes from the first element of an array to its lowest one, and from there to its end."""
    low, high = np.lib.array_utils.byte_bounds(x)
    return low - x.__array_interface__["data"][0], high - low


class Tiles(NamedTuple):
    """The input of a tiler: a record, with the `kernel` and `args` of the launch that it cuts, and its axes."""

    tile: Array
    axes: Array

    def around(self, args: Array | None) -> Tiles:
        """Return the same tiles for other numeric arguments of the kernel."""
        tile = self.tile.copy()
        tile["args"] = 0 if args is None else args.ctypes.data
        return self._replace(tile=tile)


class LaunchPlan(NamedTuple):
    """Words of a plan, the most threads that a launch of it has work for, and what its launches hand to kernels."""

    words: NDArray[np.int64]  # a record `HEAD`, then one `LAUNCH` for each launch
    threads: int
    args: tuple[Array | None, ...] = ()  # the numeric arguments of each launch's kernel: a record of the kernel's own
    tiles: tuple[Tiles | None, ...] = ()  # how each launch is cut into tiles, None where it is not

    @property
    def launches(self) -> Array:
        """The records of the launches."""
        return self.words[HEAD_WORDS:].view(LAUNCH)

    def then(self, *others: LaunchPlan) -> LaunchPlan:
        """Return this plan with the launches of others after its own, and its own checks alone."""
        plans = self, *others
        words = np.concatenate((self.words, *(other.words[HEAD_WORDS:] for other in others)))
        words[:HEAD_WORDS].view(HEAD)["launches"] = sum(len(plan.args) for plan in plans)
        return LaunchPlan(
            words=words,
            threads=max(plan.threads for plan in plans),
            args=tuple(args for plan in plans for args in plan.args),
            tiles=tuple(tiles for plan in plans for tiles in plan.tiles),
        )

    def part(self, start: int, stop: int) -> LaunchPlan:
        """Return this plan of one launch for units start..stop of the arrays, which begin with element 0."""
        plan = self._replace(words=self.words.copy())
        plan.launches[["origin", "start", "stop"]] = 0, start, stop
        return plan

    def with_args(self, **numbers: float) -> LaunchPlan:
        """Return this plan with other numbers in these fields of the arguments of all its kernels."""
        args = tuple(None if each is None else each.copy() for each in self.args)
        for each in args:
            if each is not None:
                for name, number in numbers.items():
                    each[name] = number
        tiles = tuple(each and each.around(of) for each, of in zip(self.tiles, args, strict=True))
        words = self.words.copy()
        # calls of NVFP4 do this each time: to set a field of the records would take 2 us more
        for k in range(len(args)):
            words[HEAD_WORDS + k * LAUNCH_WORDS + ARGS] = _address(args[k], tiles[k])
        return LaunchPlan(words, self.threads, args, tiles)

    @property
    def kernels(self) -> list[int]:
        """Addresses of the functions that it launches, tilers and what they call among them."""
        return [*self.launches["kernel"].tolist(), *(int(each.tile["kernel"][0]) for each in self.tiles if each)]


def _address(args: Array | None, tiles: Tiles | None) -> int:
    """Return the address that a kernel gets, that of its own record, or a tiler, that of the record of tiles.

    0 of a kernel that has no record.
    """
    argument = args if tiles is None else tiles.tile
    return 0 if argument is None else argument.ctypes.data


def plan_launch(
    kernel: int,  # its address
    operands: tuple[int, int, int, int, int],  # which operands it gets
    args: Array | None,  # its numeric arguments: a record
    stop: int,  # number of units
    threads: int,  # how many may work on it
    *,
    origin: int = 0,  # the element that arrays begin with
    size: int = 1,  # elements in a unit
    chunk_multiple: int = 1,  # the number of units in a chunk is a multiple of this
    chunk: int = 0,  # units in a chunk, kept to by a single thread too; 0: as suits the number of threads
    backward: bool = False,  # begin with the last chunk, which the launch before this one has left in the cache
    wake_workers: bool = False,  # wake workers for fewer than `threadpool.WAKE_FROM` elements too
    status_mask: int = ALL_STATUS,  # bits of the status that end the plan and are returned
    tiles: Tiles | None = None,  # what a tiler needs to know; the address is then that of the tiler
) -> LaunchPlan:
    """Return a plan of one launch: a kernel on units 0..stop."""
    if threads > 1 and not chunk:
        chunk = threadpool.chunk_for(stop, size, chunk_multiple, threads)
    fields = {
        "kernel": kernel,
        "operands": operands,
        "origin": origin,
        "start": 0,
        "stop": stop,
        "chunk": chunk,
        "threads": threads,
        "wake_workers": wake_workers or stop * size >= threadpool.WAKE_FROM,
        "backward": backward,
        "status_mask": status_mask,
        "args": _address(args, tiles),
    }
    words = np.concatenate((_UNCHECKED, _words_of(LAUNCH, fields)))
    return LaunchPlan(words, threads, (args,), (tiles,))


_UNCHECKED = Checks((0, 0, 0, 0)).head(1)


# --- the compiled driver ----------------------------------------------------------------------------------------------


def _import_drive() -> Callable[..., Any]:
    """Import the function that is compiled for `_driver`, only where there is no machine code of it."""
    from fastq.engine.runtime.drive import drive

    return drive


# makes, when it is first called, the Python function of the compiled `drive`, and returns that
_driver = once_made(_import_drive)


# What `bind` returns depends on two switches of tools. `recorded_kernels` adds a list here, which gets the addresses of
# the kernels of each plan that is bound meanwhile
_recordings: list[list[int]] = []


class _Planning(threading.local):
    on = False  # whether calls of this thread only plan


# `planned_only` switches it on: plans that are bound then launch nothing while it is on
_planning = _Planning()


def bind(plan: LaunchPlan, checks: Checks | None = None) -> Callable[..., int]:
    """Return a function that launches a plan on operands that pass checks, as long as threads do not change.

    It takes ndarrays of exactly that type, contiguous, or None, in the order X, OUT, SCALE, ZERO and the plan's own;
    a scale or zero point may also be a number. It returns the status, or `UNFIT` where a check failed and nothing was
    done.
    """
    if checks is not None:
        plan = plan._replace(words=np.concatenate((checks.head(len(plan.args)), plan.words[HEAD_WORDS:])))
    for kernels in _recordings:
        kernels += plan.kernels
    return functools.partial(_launch_unless_planning, plan) if _planning.on else _driver_with(plan)


def _driver_with(plan: LaunchPlan) -> Callable[..., int]:
    """Return the driver with its first two arguments, which are the same at each call.

    They are `objects[0]` and `objects[1]` of the compiled `drive.drive`: the words of the thread pool and those of the
    plan. Operands follow at a call.
    """
    launch = functools.partial(_driver(), threadpool.pool_for(plan.threads), plan.words)
    vars(launch)["plan"] = plan  # whose records live as long as the words that have their addresses
    return launch


def _launch_unless_planning(plan: LaunchPlan, *operands: Any) -> int:
    """Do nothing in a thread that only plans; launch in others, which may get the plan from the cache."""
    return 0 if _planning.on else _driver_with(plan)(*operands)


def refuse_all_operands(*operands: object) -> int:
    """Return `UNFIT` for any operands, in place of a bound plan, where Python has to make them ready first."""
    return UNFIT


def run(plan: LaunchPlan, *operands: Array | None) -> int:
    """Launch a plan once on valid operands; return the status."""
    status = bind(plan)(*operands)
    assert status != UNFIT
    return status


@contextlib.contextmanager
def planned_only() -> Iterator[None]:
    """Make calls of this thread plan and compile without launching anything: results are not written.

    What a launch itself needs is compiled too.
    """
    for compiled in (_driver, boundary._exchange, *threadpool.COMPILED):
        compiled.cache_clear()  # `use_native` may have been called since
        compiled()
    threadpool.forget_plans()
    _planning.on = True
    try:
        yield
    finally:
        _planning.on = False
        threadpool.forget_plans()


@contextlib.contextmanager
def recorded_kernels() -> Iterator[list[int]]:
    """Record the addresses of kernels that calls launch meanwhile, in whatever thread; a kernel may come twice.

    Plans that were bound before are forgotten, so that calls like earlier ones are recorded too.
    """
    kernels: list[int] = []
    threadpool.forget_plans()
    try:
        _recordings.append(kernels)
        yield kernels
    finally:
        _recordings[:] = [each for each in _recordings if each is not kernels]
