"""jax.jit on the CPU: a plain call allocates its result; a donated buffer lets XLA write where the last result was.

XLA uses every core by itself. Above 32 MiB a fresh result is paid for in page faults, so both ways are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import data
from ..cases import Case
from . import Runner

Function = Callable[..., Any]


# what a byte of codes is read as
PAIRS = {"int4": jnp.int4, "mxfp4": jnp.float4_e2m1fn}


def codes_of(x: jax.Array, scale: Any, zero_point: Any, low: int = -128, high: int = 127) -> jax.Array:
    return jnp.clip(jnp.round(x / scale) + zero_point, low, high)


def quantize(x: jax.Array, scale: Any, zero_point: Any = 0) -> jax.Array:
    return codes_of(x, scale, zero_point).astype(jnp.int8)


def dequantize(codes: jax.Array, scale: Any, zero_point: Any = 0) -> jax.Array:
    return (codes.astype(jnp.float32) - zero_point) * scale


def dequantize_packed(pairs: Any, packed: jax.Array, scale: jax.Array) -> jax.Array:
    codes = jax.lax.bitcast_convert_type(packed, pairs).reshape(*packed.shape[:-1], -1)
    return dequantize(codes, scale.astype(jnp.float32))


def fake_quantize(low: int, x: jax.Array, scale: Any, zero_point: Any = 0) -> jax.Array:
    return dequantize(codes_of(x, scale, zero_point, low), scale, zero_point)


def fake_quantize_range(x: jax.Array, *_: Any) -> jax.Array:
    low, high = jnp.minimum(x.min(), 0), jnp.maximum(x.max(), 0)
    scale = (high - low) / 255
    zero_point = jnp.clip(jnp.round(-low / scale), 0, 255)
    return dequantize(codes_of(x, scale, zero_point, 0, 255), scale, zero_point)


def arguments(given: str, case: Case) -> list[jax.Array]:
    """The array, its scale or scales, and the zero point where there is one."""
    array = data.grouped(getattr(data, given)(case, aligned=True), case)
    zero_point = [] if case.work.symmetric else [np.float32(data.zero(case))]
    return [jax.device_put(a) for a in (array, data.scales_of(case), *zero_point)]


def in_place(function: Function, inputs: list[jax.Array]) -> tuple[Callable[[], None], list[jax.Array]]:
    """A call that writes where the last result was, and a list that holds the last result."""
    compiled = jax.jit(lambda out, *inputs: function(*inputs), donate_argnums=0, keep_unused=True)
    result = jax.eval_shape(function, *inputs)
    last = [jnp.zeros(result.shape, result.dtype)]

    def call() -> None:
        last[0] = compiled(last[0], *inputs).block_until_ready()

    return call, last


def plain(make: Callable[[Case], Function], given: str, result: str, case: Case) -> Runner:
    compiled, inputs = jax.jit(make(case)), arguments(given, case)

    def call() -> jax.Array:
        return compiled(*inputs).block_until_ready()

    return Runner(call, lambda: {result: np.asarray(call())})


def donated(make: Callable[[Case], Function], given: str, result: str, case: Case) -> Runner:
    call, last = in_place(make(case), arguments(given, case))
    return Runner(call, lambda: {result: np.array(last[0])})


def minmax(case: Case) -> Runner:
    compiled = jax.jit(lambda x: (x.min(), x.max()))
    x = arguments("x", case)[0]

    def call() -> Any:
        return jax.block_until_ready(compiled(x))

    return Runner(call, lambda: dict(zip(("lo", "hi"), call(), strict=True)))


FUNCTIONS: dict[str, tuple[Callable[[Case], Function], str, str]] = {
    "quantize_linear": (lambda case: quantize, "x", "codes"),
    "dequantize_linear": (lambda case: dequantize, "codes", "values"),
    "dequantize": (lambda case: partial(dequantize_packed, PAIRS[case.work.code]), "packed", "values"),
    "fake_quantize": (lambda case: partial(fake_quantize, data.limits(case)[0]), "x", "values"),
    "fake_quantize_range": (lambda case: fake_quantize_range, "x", "values"),
}
BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {("minmax", ""): minmax} | {
    (operation, variant): partial(make, *function)
    for operation, function in FUNCTIONS.items()
    for variant, make in (("", plain), ("donated", donated))
}
