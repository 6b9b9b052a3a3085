"""The formulas as functions of jax.numpy, which jax.jit compiles; codes and values are written where the last were."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fastq.formats.qtypes import QTYPES, QType

from ..peers.jax_jit import in_place
from . import formulas
from .arrays import Array, Operands, dtype_of
from .formulas import Rule, rule_of
from .grid import WORKS, Cell
from .peers import Prepared
from .views import PlainInputs, plain_inputs

jax.config.update("jax_enable_x64", True)

Function = Callable[..., jax.Array]
# --- codes as they are stored -----------------------------------------------------------------------------------------


def stored(codes: jax.Array, qtype: QType, shape: tuple[int, ...]) -> jax.Array:
    """Return the codes in their storage, those of 4 bits two a byte."""
    if not qtype.packed:
        return codes.astype(qtype.storage).reshape(shape)
    pairs = codes.astype(qtype.storage).astype(jnp.uint8).reshape(-1, 2)
    return (pairs[:, 0] & 15 | pairs[:, 1] << 4).reshape(*shape[:-1], -1)


def read(codes: jax.Array, qtype: QType) -> jax.Array:
    """Return one code per element, in whichever way codes are stored."""
    is_packed = qtype.packed and codes.dtype == jnp.uint8
    return jax.lax.bitcast_convert_type(codes, dtype_of(qtype.name)) if is_packed else codes


# --- functions --------------------------------------------------------------------------------------------------------


def encode(x: jax.Array, scale: jax.Array, zero: jax.Array, rule: Rule, qtype: QType) -> jax.Array:
    """Return the codes that their storage holds; the conversion rounds those that are floats."""
    if qtype.element:
        return jnp.clip(x / scale, rule.lowest, rule.highest).astype(qtype.storage)
    return formulas.encode(jnp, x, scale, zero, rule)


def _elements(inputs: PlainInputs) -> tuple[Function, list[Array]]:
    rule, qtype, real = rule_of(inputs), inputs.qtype, inputs.real
    function, shape, dtype = WORKS[inputs.cell.work].function, inputs.operands.shape, inputs.result().dtype

    def made(first: jax.Array, *given: jax.Array) -> jax.Array:
        decodes = function.startswith("dequantize")
        x = (read(first, qtype) if decodes else first).reshape(inputs.first.shape).astype(real)
        if decodes:
            return formulas.decode(jnp, x, *given, rule).astype(dtype).reshape(shape)
        parameters = given or formulas.parameters_of(jnp, x, rule)
        codes = encode(x, *parameters, rule, qtype)
        if function == "fake_quantize":
            return formulas.decode(jnp, codes.astype(real), *parameters, rule).astype(dtype).reshape(shape)
        return stored(codes, qtype, shape)

    return made, [inputs.operands.first, *(inputs.beside if inputs.operands.qparams else ())]


def _choose_qparams(inputs: PlainInputs) -> tuple[Function, list[Array]]:
    rule = rule_of(inputs)
    return lambda x: formulas.parameters_of(jnp, x.astype(inputs.real), rule), [inputs.first]


def _minmax(inputs: PlainInputs) -> tuple[Function, list[Array]]:
    return partial(_ranges, rule_of(inputs)), [inputs.first]


def _ranges(rule: Rule, x: jax.Array) -> tuple[jax.Array, ...]:
    return formulas.ranges_of(jnp, x, rule)


def _compare(inputs: PlainInputs) -> tuple[Function, list[Array]]:
    rule, real, other = rule_of(inputs), inputs.real, inputs.operands.approximation
    assert other is not None

    def measured(x: jax.Array, values: jax.Array, *given: jax.Array) -> jax.Array:
        clipped = formulas.is_clipped(jnp, x.astype(real), *given, rule) if given else None
        values = formulas.decode(jnp, values.astype(real), *given, rule) if given else values
        return formulas.measures_of(jnp, x.astype(jnp.float64), values.astype(jnp.float64), clipped)

    given = inputs.beside if inputs.operands.qparams else ()
    return measured, [inputs.first, other.reshape(inputs.first.shape), *given]


def _binarize(inputs: PlainInputs) -> tuple[Function, list[Array]]:
    def made(x: jax.Array) -> jax.Array:
        octets = jnp.packbits(x > 0, axis=-1)
        return jax.lax.bitcast_convert_type(octets ^ 128, jnp.int8) if inputs.qtype.signed else octets

    return made, [inputs.first]


_FUNCTIONS: dict[str, Callable[[PlainInputs], tuple[Function, list[Array]]]] = {
    "choose_qparams": _choose_qparams,
    "minmax": _minmax,
    "compare": _compare,
    "binarize": _binarize,
}
_SMALL = ("choose_qparams", "minmax", "compare")  # whose results are allocated


def _does(cell: Cell, o: Operands) -> bool:
    """Return whether bytes of codes are whole, and what is clipped is a matter of codes."""
    qtype, function = QTYPES.get(cell.format), WORKS[cell.work].function
    if qtype is None:
        return True
    return not (qtype.packed and (o.shape[-1] % 2 or function == "compare")) and not (
        qtype.element and function == "compare"
    )


def prepared(cell: Cell, o: Operands) -> Prepared | None:
    """Prepare the work as a function of jax; None where blocks are ragged or rows end within a byte."""
    # what has the shape of the codes where two of them are a byte of the operand
    shaped = o.first if o.first.shape == o.shape else np.broadcast_to(np.zeros((), o.first.dtype), o.shape)
    inputs = plain_inputs(cell, o, shaped) if _does(cell, o) else None
    if inputs is None:
        return None
    name = WORKS[cell.work].function
    function, arrays = _FUNCTIONS.get(name, _elements)(inputs)
    on_device = [jax.device_put(array) for array in arrays]
    if name not in _SMALL:
        call, last = in_place(function, on_device)
        return Prepared(call, lambda: (np.asarray(last[0]),))
    compiled = jax.jit(function)
    return Prepared(
        lambda: jax.block_until_ready(compiled(*on_device)),
        lambda: tuple(map(np.asarray, results)) if isinstance(results := compiled(*on_device), tuple) else (results,),
    )
