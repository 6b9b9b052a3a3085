"""The code that a wheel must have for the usual calls of each public function: `python usual_calls.py`.

Each line is the name of a function that had to be found, the public function and the first call of it that needs it.
Calls are planned, so nothing is compiled or computed.
"""

import sys
import tomllib
from pathlib import Path

import ml_dtypes
import numpy as np

CALLS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SIZES = (8, 64), (256, 512), (4096, 4096)
THREADS = 1, 2, 16
DTYPES = {"f16": "float16", "bf16": ml_dtypes.bfloat16, "f64": "float64", "out": "float32", "i8": "int8"}
DTYPES |= {"u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32"}


def names_of(n, m):
    """What calls name: matrices of n rows and m columns, by dtypes, codes `q` of them, and functions."""
    import fastq
    from fastq.operations.works import _quantized

    x = np.zeros((n, m), np.float32)
    given = {
        "x": x,
        "wide": np.zeros((n, 256), np.float32),
        "images": np.zeros((n, m // 16, 4, 4), np.float32),
        "bits": np.zeros((n, m // 8), np.uint8),
        "q": lambda name, of=x, **scheme: _quantized(of, name, **scheme),
        "ones": lambda shape, dtype="float32": np.ones(shape, dtype),
        "bfloat16": ml_dtypes.bfloat16,
        "n": n,
        "m": m,
    }
    names = {name: getattr(fastq, name) for name in dir(fastq)}
    names |= {name: getattr(np, name) for name in ("zeros", "full", "uint8", "int32", "float32")}
    return names | given | {name: np.zeros((n, m), dtype) for name, dtype in DTYPES.items()}


def needed(functions, found):
    """Yield what each call has to find first, given where it is recorded."""
    from fastq.dispatch.callers import planned_only
    from fastq.engine.runtime import threadpool

    for size in SIZES:
        names = names_of(*size)
        for threads in THREADS:
            threadpool.set_num_threads(threads)
            with planned_only():
                for name in functions:
                    for call in CALLS[name].strip().splitlines():
                        known = set(found)
                        eval(call, names)
                        for symbol in found.keys() - known:
                            yield symbol, name, call


if __name__ == "__main__":
    from fastq.engine.code import shipped

    for line in needed(sys.argv[1:] or CALLS, shipped.record()):
        print(*line)
