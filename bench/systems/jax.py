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
import works
from works import SCALE, ZERO_POINT, Array, Runner

Function = Callable[..., jax.Array]


def dequantize(codes: jax.Array, scale: Any, zero_point: Any) -> jax.Array:
    return (codes.astype(jnp.float32) - zero_point) * scale


def fake_quantize(x: jax.Array, scale: Any, zero_point: Any, low: int = -128, high: int = 127) -> jax.Array:
    return dequantize(jnp.clip(jnp.round(x / scale) + zero_point, low, high), scale, zero_point)


def fake_quantize_range(x: jax.Array, *_: Any) -> jax.Array:
    low, high = jnp.minimum(x.min(), 0), jnp.maximum(x.max(), 0)
    scale = (high - low) / 255
    return fake_quantize(x, scale, jnp.clip(jnp.round(-low / scale), 0, 255), 0, 255)


def arguments(given: Callable[..., Array], size: str) -> list[jax.Array]:
    return [jax.device_put(a) for a in (given(size, aligned=True), np.float32(SCALE), np.float32(ZERO_POINT))]


def plain(function: Function, given: Callable[..., Array], size: str) -> Runner:
    compiled, inputs = jax.jit(function), arguments(given, size)

    def call() -> jax.Array:
        return compiled(*inputs).block_until_ready()

    return Runner(call, lambda: {"values": np.asarray(call())})


def donated(function: Function, given: Callable[..., Array], size: str) -> Runner:
    compiled = jax.jit(lambda out, *inputs: function(*inputs), donate_argnums=0, keep_unused=True)
    inputs = arguments(given, size)
    last = [jax.jit(function)(*inputs).block_until_ready()]

    def call() -> None:
        last[0] = compiled(last[0], *inputs).block_until_ready()

    return Runner(call, lambda: {"values": np.array(last[0])})


WORKS: dict[str, tuple[Function, Callable[..., Array]]] = {
    "dequantize_linear": (dequantize, works.flat_codes),
    "fake_quantize": (fake_quantize, works.flat),
    "fake_quantize_range": (fake_quantize_range, works.flat),
}
BUILDERS: dict[tuple[str, str], Callable[[str], Runner]] = {
    (work, variant): partial(make, *made_of)
    for work, made_of in WORKS.items()
    for variant, make in (("jit", plain), ("jit donated", donated))
}
