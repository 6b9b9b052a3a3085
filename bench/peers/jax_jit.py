"""jax.jit of the formulas on the CPU: a plain call allocates its result, a donated buffer has it where the last was.

XLA uses every core by itself. Above 32 MiB a fresh result is paid for in page faults, so both ways are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fastq.formats.qtypes import QType

from .. import formulas
from ..calls import Array, Operands, dtype_of
from ..formulas import ELEMENTS, Rule, rule_of
from . import Builders, Runner

jax.config.update("jax_enable_x64", True)

Function = Callable[..., Any]
Made = tuple[Function, list[Array], tuple[str, ...]]  # a function, its arguments, and the names of its results


def stored(codes: jax.Array, qtype: QType, shape: tuple[int, ...]) -> jax.Array:
    """Return the codes in their storage, those of 4 bits two a byte."""
    if not qtype.packed:
        return codes.astype(qtype.storage).reshape(shape)
    pairs = codes.astype(qtype.storage).astype(jnp.uint8).reshape(-1, 2)
    return (pairs[:, 0] & 15 | pairs[:, 1] << 4).reshape(*shape[:-1], -1)


def read(codes: jax.Array, qtype: QType) -> jax.Array:
    """Return one code per element, in whichever way codes are stored."""
    is_packed = qtype.packed and codes.dtype == jnp.uint8
    return jax.lax.bitcast_convert_type(codes, dtype_of(qtype.element or qtype.name)) if is_packed else codes


def encode(x: jax.Array, scale: jax.Array, zero: jax.Array, rule: Rule, qtype: QType) -> jax.Array:
    """Return the codes that their storage holds; the conversion rounds those that are floats."""
    if qtype.element:
        return jnp.clip(x / scale, rule.lowest, rule.highest).astype(qtype.storage)
    return formulas.encode(jnp, x, scale, zero, rule)


def _elements(o: Operands) -> Made:
    rule, qtype, real, dtype = rule_of(o), o.qtype, o.real, o.result_dtype

    def made(first: jax.Array, *given: jax.Array) -> jax.Array:
        decodes, given = o.function.startswith("dequantize"), tuple(each.astype(real) for each in given)
        x = (read(first, qtype) if decodes else first).reshape(o.grouped_shape).astype(real)
        if decodes:
            return formulas.decode(jnp, x, *given, rule).astype(dtype).reshape(o.shape)
        parameters = given or formulas.parameters_of(jnp, x, rule)
        codes = encode(x, *parameters, rule, qtype)
        if o.made == "values":
            return formulas.decode(jnp, codes.astype(real), *parameters, rule).astype(dtype).reshape(o.shape)
        return stored(codes, qtype, o.shape)

    return made, [o.first, *(o.beside if o.qparams else ())], (o.made,)


def _minmax(o: Operands) -> Made:
    rule = rule_of(o)
    return lambda x: formulas.ranges_of(jnp, x, rule), [o.grouped(o.first)], ("lo", "hi")


def in_place(function: Function, inputs: list[jax.Array]) -> tuple[Callable[[], None], list[jax.Array]]:
    """A call that writes where the last result was, and a list that holds the last result."""
    compiled = jax.jit(lambda out, *inputs: function(*inputs), donate_argnums=0, keep_unused=True)
    result = jax.eval_shape(function, *inputs)
    last = [jnp.zeros(result.shape, result.dtype)]

    def call() -> None:
        last[0] = compiled(last[0], *inputs).block_until_ready()

    return call, last


def prepared(o: Operands, donates: bool = True) -> Runner:
    """Prepare the work as a function of jax."""
    function, arrays, names = _minmax(o) if o.function == "minmax" else _elements(o)
    on_device = [jax.device_put(array) for array in arrays]
    if donates:
        call, last = in_place(function, on_device)
        return Runner(call, lambda: {names[0]: np.asarray(last[0])})
    compiled = jax.jit(function)

    def results() -> dict[str, Any]:
        found = compiled(*on_device)
        return dict(zip(names, map(np.asarray, found if isinstance(found, tuple) else (found,)), strict=True))

    return Runner(lambda: jax.block_until_ready(compiled(*on_device)), results)


allocating = partial(prepared, donates=False)
BUILDERS: Builders = {(operation, ""): allocating for operation in (*ELEMENTS, "fake_quantize_range", "minmax")}
