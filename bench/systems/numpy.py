"""NumPy, straightforwardly: a whole-array operation for each step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import works
from works import Runner


def minmax(size: str) -> Runner:
    x = works.flat(size)

    def call() -> tuple[np.float32, np.float32]:
        return x.min(), x.max()

    return Runner(call, lambda: dict(zip(("lo", "hi"), call(), strict=True)))


def compare(size: str) -> Runner:
    x = works.flat(size)
    parameters = works.range_parameters(x)
    codes = works.quantized(x, parameters.scale, parameters.zero_point, "uint8")
    last = [np.empty(0)]

    def call() -> None:
        last[0] = works.error_measures(x, codes, parameters)

    return Runner(call, lambda: {"measures": last[0]})


BUILDERS: dict[tuple[str, str], Callable[[str], Runner]] = {
    ("minmax", "min + max"): minmax,
    ("compare", "temporaries"): compare,
}
