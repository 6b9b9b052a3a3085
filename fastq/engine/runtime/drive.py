"""The compiled driver, which launches the kernels of a plan: see `fastq.engine.runtime.driver`."""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from fastq.engine.jit import traced
from fastq.engine.runtime import workers
from fastq.engine.runtime.instructions import (
    enter_standard_mode,
    int_value,
    leave_standard_mode,
    local,
    new_int,
    release_interpreter,
    take_interpreter,
    words_at,
)
from fastq.engine.runtime.shared_records import (
    DATA,
    HEAD,
    HEAD_BYTES,
    LAUNCH,
    LAUNCH_BYTES,
    NBYTES,
    NONE,
    OPERANDS,
    OUT,
    SCALE,
    TYPE,
    UNFIT,
    VALUE,
    ZERO,
    X,
)
from fastq.engine.simd import advance, bitcast, cast_pointer, convert, pointer, record_at

# words on the driver's stack: addresses of operands, then a scale and a zero point that came as numbers
GIVEN_SCALE = NONE + 1
GIVEN_ZERO = NONE + 2
OVERFLOW = NONE + 3


@traced
def _find(item, k, plan, nbytes, stack, base):  # type: ignore[no-untyped-def]
    """Write the address of the elements of operand k to the stack; return whether it is of a type that is expected.

    `item` is the address of the object that was passed, `stack` points to words of the driver, and `base` is their
    address. A number of Python's becomes one of the dtype that kernels read.
    """
    fields = words_at(item)
    object_type = fields[TYPE]
    if object_type == plan.array:
        stack[k] = fields[DATA]
        return True
    if item == plan.nothing:
        return k > ZERO or nbytes[k] == 0  # the plan's own operands may be missing, as may those that have no bytes
    if k == SCALE:
        return _find_number(item, object_type, k, plan.scale_size, plan.scale_type, plan, stack, base)
    if k == ZERO:
        if plan.zero_is_float == 0 and object_type == plan.int:
            return _find_code(item, plan, stack, base)
        size = plan.zero_size if plan.zero_is_float else 0
        return _find_number(item, object_type, k, size, plan.zero_type, plan, stack, base)
    return False


@traced
def _find_number(item, object_type, k, size, scalar, plan, stack, base):  # type: ignore[no-untyped-def]
    """Write the address of a number to the stack; return whether it is of a type that is expected.

    It is a NumPy scalar of the type `scalar`, which is read where it is, or a float of Python or float64 that stands
    for a float of `size` bytes, and goes to a word of the stack in that width; with `size` 0 there is no such float.
    """
    if object_type == scalar:
        stack[k] = item + 8 * VALUE
        return True
    if size == 0 or (object_type != plan.float and object_type != plan.double):
        return False
    value = words_at(item)[VALUE]
    # of SCALE it is GIVEN_SCALE, of ZERO GIVEN_ZERO
    word = k - SCALE + GIVEN_SCALE
    if size == 4:
        cast_pointer(advance(stack, word), types.float32)[0] = convert(bitcast(value, types.float64), types.float32)
    else:
        stack[word] = value
    stack[k] = base + 8 * word
    return True


@traced
def _find_code(item, plan, stack, base):  # type: ignore[no-untyped-def]
    """Write an int of Python's, an integer zero point, to the stack; return whether it is among the codes."""
    stack[OVERFLOW] = 0
    value = int_value((item, base + 8 * OVERFLOW))
    stack[GIVEN_ZERO] = value  # its lowest bytes come first in memory
    stack[ZERO] = base + 8 * GIVEN_ZERO
    return stack[OVERFLOW] == 0 and plan.least_zero <= value <= plan.most_zero


@traced
def _find_all(objects, operands, plan, nbytes, stack, base):  # type: ignore[no-untyped-def]
    """Find the elements of all operands that were given; return whether each is of a type that is expected."""
    all_expected = True
    for k in range(operands):
        all_expected = _find(objects[k], k, plan, nbytes, stack, base) and all_expected
    return all_expected


def _make_finite_check(word: types.Type, without_sign: int, infinity: int) -> Callable[..., bool]:
    """Make the loop of `_are_finite` for floats of as many bits as an integer type, given the bits of infinity.

    Bits are compared as integers: those of negative floats are negative, so they fail unless `signed` removes the sign.
    """

    @traced
    def check(where, count, above, signed):  # type: ignore[no-untyped-def]
        """Return whether the bits of each of `count` floats are above `above` and below those of infinity."""
        good = True
        mask = without_sign if signed else -1
        words = pointer(where, word)
        for k in range(count):
            good &= above < words[k] & mask < infinity
        return good

    return check  # type: ignore[no-any-return]


_are_finite_singles = _make_finite_check(types.int32, 0x7FFFFFFF, 0x7F800000)
_are_finite_doubles = _make_finite_check(types.int64, 0x7FFFFFFFFFFFFFFF, 0x7FF << 52)


@traced
def _are_finite(where, size, nbytes, above, signed):  # type: ignore[no-untyped-def]
    """Return whether floats are finite and above 0, or from 0 on, which their bits as an integer tell.

    `above` is 0 or -1; with `signed` their magnitudes are meant.
    """
    if size == 4:
        return _are_finite_singles(where, nbytes >> 2, above, signed)
    return _are_finite_doubles(where, nbytes >> 3, above, signed)


@traced
def _are_codes(where, nbytes, least, most):  # type: ignore[no-untyped-def]
    """Return whether codes of one byte, signed or not, are from least to most.

    The distance from the least code is taken modulo 256, so that the sign does not matter: from -8 to 7 the byte 0xF9,
    which is -7, is (0xF9 + 8) & 0xFF = 1 above the least, and 1 <= 15.
    """
    good = True
    codes = pointer(where, types.uint8)
    for k in range(nbytes):
        good &= (codes[k] - least) & 0xFF <= most - least
    return good


@traced
def _pass(plan, nbytes, stack):  # type: ignore[no-untyped-def]
    """Return whether operands are as `Checks` says: none shares memory with out, and numbers are in range.

    Integer zero points are looked at where they have one byte and not all bytes are codes; those of wider types are
    not.
    """
    start = stack[OUT] + plan.lowest_out
    stop = start + nbytes[OUT]
    for k in (X, SCALE, ZERO):
        first = stack[k] + (plan.lowest_x if k == X else 0)
        if first < stop and start < first + nbytes[k]:
            return False
    size = plan.scale_size
    may_be_negative = plan.scale_flags & 1  # `Checks.head` has both in one word
    may_be_zero = plan.scale_flags >> 1
    above = -may_be_zero  # scales are above 0, or above -1
    if size and not _are_finite(stack[SCALE], size, nbytes[SCALE], above, may_be_negative):
        return False
    if plan.zero_is_float:
        return _are_finite(stack[ZERO], plan.zero_size, nbytes[ZERO], -1, 1)
    if plan.zero_size == 1 and plan.most_zero - plan.least_zero < 0xFF:
        return _are_codes(stack[ZERO], nbytes[ZERO], plan.least_zero, plan.most_zero)
    return True


@traced
def _pointers(stack, operand_numbers, args):  # type: ignore[no-untyped-def]
    """Return the addresses that a kernel gets: of its five operands, and of its record of numbers."""
    k = operand_numbers
    return stack[k[0]], stack[k[1]], stack[k[2]], stack[k[3]], stack[k[4]], args


def drive(_, arguments, count):  # type: ignore[no-untyped-def]
    """Check operands and launch a plan; return its status, or `UNFIT` where a check failed, as a new int.

    It is a function of METH_FASTCALL. The first two arguments are arrays, of which the words are read: those of the
    thread pool, and those of the plan, both bound by `driver._driver_with`. The operands of the call come after them.
    """
    objects = words_at(arguments)
    base = local()
    mode = enter_standard_mode()
    pool = words_at(words_at(objects[0])[DATA])
    start = words_at(objects[1])[DATA]
    plan = record_at(start, HEAD)
    nbytes = advance(words_at(start), NBYTES)
    stack = words_at(base)
    for k in range(NONE + 1):
        stack[k] = 0
    if not (_find_all(advance(objects, 2), count - 2, plan, nbytes, stack, base) and _pass(plan, nbytes, stack)):
        leave_standard_mode(mode)
        return new_int((UNFIT,))
    interpreter = release_interpreter(())
    status = 0
    at = start + HEAD_BYTES
    for _ in range(plan.launches):
        launch = record_at(at, LAUNCH)
        pointers = _pointers(stack, advance(words_at(at), OPERANDS), launch.args)
        units = launch.origin, launch.start, launch.stop, launch.chunk
        how = launch.threads, launch.wake_workers, launch.backward
        # the kernel is `entry` of fastq/kernels/build.py, compiled for its operands, or a tiler, which calls that
        status |= workers.run(pool, launch.kernel, pointers, units, *how) & launch.status_mask
        if status:
            break
        at += LAUNCH_BYTES
    leave_standard_mode(mode)
    take_interpreter((interpreter,))
    return new_int((status,))
