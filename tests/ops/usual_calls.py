"""The usual calls of each public function, from `usual_calls.toml`: the code that they need, or what they return.

`python usual_calls.py` plans the calls, so nothing is compiled or computed: each line is the name of a function that
had to be found, the public function and the first call of it that needs it. `python usual_calls.py results [CALL ...]`
makes calls with random numbers: each line has a digest of its result, or "-" where the wheel lacks what it needs
or the process a library, and the call.
"""

import contextlib
import hashlib
import sys
import tomllib
from pathlib import Path

import ml_dtypes
import numpy as np

CALLS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SIZES = (8, 64), (256, 512), (4096, 4096)
THREADS = 1, 2, 16
DTYPES = {"x": "float32", "f16": "float16", "bf16": ml_dtypes.bfloat16, "f64": "float64", "out": "float32"}
DTYPES |= {"i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32"}
LACKS = "this came not with the package"  # what a process says that must not compile


def names_of(n, m, quantized, filled=np.zeros):
    """What calls name: matrices of n rows and m columns, by dtypes, codes `q` of them, and functions."""
    import fastq

    arrays = {name: filled((n, m), np.dtype(dtype)) for name, dtype in DTYPES.items()}
    given = {
        "wide": filled((n, 256), np.dtype("float32")),
        "images": filled((n, m // 16, 4, 4), np.dtype("float32")),
        "bits": np.zeros((n, m // 8), np.uint8),
        "q": lambda name, of=arrays["x"], **scheme: quantized(of, name, **scheme),
        "ones": lambda shape, dtype="float32": np.ones(shape, dtype),
        "bfloat16": ml_dtypes.bfloat16,
        "n": n,
        "m": m,
    }
    names = {}
    for name in {each.partition(".")[0] for each in CALLS}:
        with contextlib.suppress(ImportError):
            names[name] = getattr(fastq, name)
    names |= {name: getattr(np, name) for name in ("zeros", "full", "uint8", "int32", "float32")}
    return names | given | arrays


def needed(found):
    """Yield what each call has to find first, given where it is recorded."""
    from fastq.engine.runtime import threadpool
    from fastq.ops.works import _quantized
    from fastq.plan.callers import planned_only

    for size in SIZES:
        names = names_of(*size, _quantized)
        for threads in THREADS:
            threadpool.set_num_threads(threads)
            with planned_only():
                for name, calls in CALLS.items():
                    for call in calls.strip().splitlines():
                        known = set(found)
                        eval(call, names)
                        for symbol in found.keys() - known:
                            yield symbol, name, call


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
    """Yield a digest of the result of each call, by default of all; in one size: an emulated CPU may make them."""
    import fastq

    for call in calls or "\n".join(CALLS.values()).split("\n"):
        if call:
            try:
                value = eval(call, names_of(256, 512, fastq.quantize, random))
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
