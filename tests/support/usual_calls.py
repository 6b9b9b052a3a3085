"""The usual calls of each public function, from works.toml: the code that they need, or what they return.

`python usual_calls.py` plans the calls, so nothing is compiled or computed: each line is the name of a function that
had to be found and the first call that needs it. `python usual_calls.py results [CALL ...]` makes calls with random
numbers: each line has a digest of its result, or "-" where the wheel lacks what it needs or the process a library, and
the call.
"""

import contextlib
import hashlib
import sys

import numpy as np

from fastq.ops import works
from fastq.ops.call_text import result_of

CORNERS = "gguf", "layouts", "xarray"
OF_CORNERS = "gguf.quantize", "gguf.dequantize", "layouts.to_tensors", "xarray.unpack_array"
USUAL = [
    call for work in works.WORKS.values() for kind in ("usual", "corners") for call in works.calls(work.get(kind, ""))
]
SIZES = 256, 512  # of results: an emulated CPU may compute them
THREADS = 1, 2, 16
LACKS = "this came not with the package"  # what a process says that must not compile


def names_of(shape, quantized, filled=np.zeros):
    """What calls name, with the public corners that can be imported."""
    import fastq

    names = works.Names(shape, quantized, filled)
    for corner in CORNERS:
        with contextlib.suppress(ImportError):
            names[corner] = getattr(fastq, corner)
    return names


def needed(found):
    """Yield what each usual call has to find first, given where it is recorded."""
    from fastq.engine.runtime import threadpool
    from fastq.plan.call_modes import plan_only

    for shape in map(tuple, works.SHAPES["usual"]):
        for threads in THREADS:
            threadpool.set_num_threads(threads)
            with plan_only():
                for call in USUAL:
                    known = set(found)
                    result_of(call, names_of(shape, works.quantized_to_ones))
                    for symbol in found.keys() - known:
                        yield symbol, call


# --- made -------------------------------------------------------------------------------------------------------------


def random(shape, dtype):
    """Return random numbers, the same in every process."""
    rng = np.random.default_rng(dtype.itemsize)
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape, dtype)
    return rng.standard_normal(shape).astype(dtype)


def parts(value):
    """Yield the parts of a result."""
    if isinstance(value, np.ndarray | np.generic):
        yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, dict | tuple | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from parts(each)
    else:
        of = [
            name for name in ("codes", "scale", "zero_point", "quantized", "offset", "counts") if hasattr(value, name)
        ]
        yield from parts([getattr(value, name) for name in of]) if of else [repr(value).encode()]


def results(calls):
    """Yield a digest of the result of each call, by default of all usual ones."""
    import fastq

    for call in calls or USUAL:
        try:
            value = result_of(call, names_of(SIZES, fastq.quantize, random))
        except ValueError as error:  # of numbers that are out of range, which some calls refuse
            value = str(error)
        except (AssertionError, NameError) as error:
            if isinstance(error, AssertionError) and LACKS not in str(error):
                raise
            yield "-", call
            continue
        yield hashlib.sha256(b"".join(parts(value))).hexdigest()[:16], call


if __name__ == "__main__":
    from fastq.engine.code import shipped

    for line in results(sys.argv[2:]) if sys.argv[1:] else needed(shipped.record()):
        print(*line)
