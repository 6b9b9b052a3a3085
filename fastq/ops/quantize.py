"""Quantize: the public functions that turn values into codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QType
from fastq.formats.range_methods import MSERange
from fastq.plan.by_parameters import bind_call, numbers_of
from fastq.plan.by_range import bind_ranges, bind_work
from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.result import codes_result, result_of
from fastq.plan.spec import spec_of
from fastq.requests import quantization
from fastq.requests.parameters import (
    ParameterRules,
    check_qparams,
    qparams_for_plan,
    rules_of,
)
from fastq.requests.quantization import (
    LinearOptions,
    QuantizeOptions,
    RangeOptions,
    Request,
    as_qparams,
    check_beside_qparams,
    dtype_of_fakes,
    request_by_range,
)
from fastq.requests.stochastic_rounding import Noise, noise_of
from fastq.results import Axis, QParams, QuantizedArray, without_checks
from fastq.system.arrays_of_callers import dtype_of, is_out
from fastq.system.dtypes import Array


def quantize(
    x: ArrayLike,
    dtype: str | QType | DTypeLike | None = None,
    *,
    qparams: QParams | None = None,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    saturate: bool = True,
    out: Array | None = None,
    bits: int | None = None,
    range: str | MSERange = "minmax",
    importance: ArrayLike | None = None,
    rounding: str | None = None,
    rng: Any = None,
) -> QuantizedArray:
    """Quantize an array with parameters that are computed from it or given.

    ``codes = saturate(rint(x / scale) + zero_point)``, ties to even, with the parameters of `choose_qparams`; other
    conventions round differently. A block that fits the cache is read only once.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype, of any shape and memory layout.
    dtype : str, QType or dtype
        The code format: "int8", "uint4", "float8_e4m3fn", "nf4", "mxfp4" or another; a wrong name lists them all.
    qparams : QParams, optional
        Parameters to use instead; they carry dtype, axis, block_size, symmetric and convention.
    axis : int, tuple of int or None
        The channel axis or axes: each index along them has its own parameters; None: one set for the array. With a
        `block_size`, the axis along which blocks run.
    block_size : int
        Elements in a block; the last one of each row may be shorter. 0: no blocks.
    symmetric : bool
        Whether the zero point is in the middle, with as many codes below it as above.
    convention : str or Convention
        System whose arithmetic to follow: a name of ``fastq.CONVENTIONS``, or your own `Convention`.
    nan : {"raise", "zero", "keep"}
        What to do with NaN: "raise" refuses it, "zero" treats it as 0.0, "keep" keeps it in formats whose codes or
        scales have a NaN.
    saturate : bool
        Whether numbers too large for a float format with a NaN become its largest number; otherwise infinity or NaN.
    out : ndarray, optional
        Array to write the codes to, in the shape of x and the storage dtype of the format; for packed formats in the
        packed shape.
    bits : int, optional
        Use only this many bits (at least 2) of `dtype`, one code per element.
    range : {"minmax", "mse", "mse-llm-compressor"} or MSERange
        "minmax" uses the full range of each array, channel or block. "mse" tries smaller and larger ranges and takes
        the one with the smallest round-trip error: see `MSERange`. "mse-llm-compressor" tries the ranges of
        llm-compressor.
    importance : array_like, optional
        Weights of the squared errors in the search for a range, finite and not negative; for example the mean squares
        of the activations of each column. One weight for each index along the axis of blocks, or without blocks along
        the last axis whose elements share parameters; or an array in the shape of x. Within the elements that share a
        parameter, only the ratios of weights matter.
    rounding : {None, "stochastic"}
        None rounds to the nearest code, as the convention prescribes. "stochastic" rounds to one of both neighbours at
        random; the probability of the upper one is the distance from the lower one, which preserves means. The choice
        depends only on `rng` and on the index of the element in the array: not on threads, memory layout, chunks or
        CPU. Parameters are the same. Codebook formats such as "nf4" do not support it.
    rng : None, int, SeedSequence, BitGenerator or Generator
        The seed of "stochastic", any argument of ``numpy.random.default_rng``: an int gives the same codes at each
        call, a generator is advanced and gives new ones; None draws a seed from the system.

    Returns
    -------
    QuantizedArray
        Codes in the memory order of x, and the parameters.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described; if x has NaN (unless ``nan="zero"``), or its range is infinite or empty.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([[-1.0, 0.0, 2.0], [0.1, 0.2, 0.3]], np.float32)
    >>> q = fastq.quantize(x, "int8", axis=0, symmetric=True)
    >>> q.codes
    array([[-64,   0, 127],
           [ 42,  85, 127]], dtype=int8)
    >>> q.scale
    array([0.01574803, 0.0023622 ], dtype=float32)
    >>> fastq.quantize_linear(np.full(8, 0.25), 1.0, 0, "int8", rounding="stochastic", rng=1)  # 2 of 8, on average
    array([1, 0, 0, 0, 1, 0, 0, 1], dtype=int8)
    """
    noise = None if rounding is None and rng is None else noise_of(rounding, rng)
    if qparams is None:
        options = axis, block_size, symmetric, saturate, bits, dtype, convention, nan, range, rounding
        types = type(axis), type(block_size), type(symmetric), type(saturate), type(bits)
        result: QuantizedArray = run_operation(QUANTIZE, x, out, importance, options=options, types=types, noise=noise)
        return result
    check_beside_qparams(dtype, axis, block_size, symmetric, convention, bits, range, importance)
    p = as_qparams(qparams)
    options_beside = saturate, nan, p.key, rounding
    codes: QuantizedArray = run_operation(
        QUANTIZE_WITH_QPARAMS,
        x,
        out,
        p.scale,
        p.zero_point,
        options=options_beside,
        types=(type(saturate),),
        qparams=p,
        noise=noise,
    )
    return codes


def choose_qparams(
    x: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    bits: int | None = None,
    range: str | MSERange = "minmax",
    importance: ArrayLike | None = None,
) -> QParams:
    """Return the scale and zero point that `quantize` would compute from an array.

    Let lo and hi be the minimum and maximum of the values that share a parameter, extended to include 0. Asymmetric:
    ``scale = (hi - lo) / (qmax - qmin)`` and ``zero_point = clamp(rint(qmin - lo / scale))``, as in ONNX's
    DynamicQuantizeLinear. Symmetric: ``scale = max(-lo, hi) / h`` with h codes on either side of the middle one. If all
    values are 0, scale is 1. Other conventions: see `Convention`.

    Parameters
    ----------
    x, dtype, axis, block_size, symmetric, convention, nan, bits, range, importance
        As in `quantize`.

    Returns
    -------
    QParams
        The scale is float64 for float64 x, for integers wider than 16 bits and for conventions that keep it so, else
        float32.

    Raises
    ------
    TypeError, ValueError, AxisError
        As `quantize`.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> p = fastq.choose_qparams(np.array([-1.0, 1.55], np.float32), "uint8")
    >>> p.scale, p.zero_point
    (array(0.01, dtype=float32), array(100, dtype=uint8))
    """
    options = axis, block_size, symmetric, True, bits, dtype, convention, nan, range
    types = type(axis), type(block_size), type(symmetric), bool, type(bits)
    result: QParams = run_operation(CHOOSE_QPARAMS, x, None, importance, options=options, types=types)
    return result


def quantize_linear(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike | None = None,
    dtype: str | QType | DTypeLike | None = None,
    *,
    axis: Axis = None,
    block_size: int = 0,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    saturate: bool = True,
    out: Array | None = None,
    rounding: str | None = None,
    rng: Any = None,
) -> Array:
    """Quantize with raw parameters: ``saturate(rint(x / scale) + zero_point)``, the QuantizeLinear operator of ONNX.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype.
    scale : array_like of float
        Positive and finite; powers of two in float8_e8m0fnu and int32 are accepted, too. One number of any shape for
        the whole array, else shape (C,) for a channel axis, or the kept dimensions for a tuple of axes. Or the rank of
        x: with ``ceil(D / block_size)`` on the block axis, or with 1 on axes without their own scales; `axis` is then
        ignored. More than one number needs its `axis`, unless scale has the rank of x or both are DataArrays.
    zero_point : array_like of int, optional
        Codes of 0.0, in the shape of the scale or one number; None for zero.
    dtype : str, QType or dtype, optional
        The code format; by default that of `zero_point`, else that of `out`, else "uint8" as in ONNX. "bfloat16" and
        "float16" are casts, usually with the scale 1; "int32" and "uint32" need a convention that has them, such as
        "nibabel".
    axis : int, tuple of int or None
        The axis or axes that scales belong to, or along which blocks run; ignored if scale is one number. ONNX's
        operator has axis 1 where none is given.
    block_size : int
        As in `quantize`.
    convention, nan, saturate, out, rounding, rng
        As in `quantize`.

    Returns
    -------
    ndarray
        Codes in the shape of x, packed along the last axis for packed formats; `out` if given.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, or x has NaN (unless ``nan="zero"``).

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.quantize_linear(np.array([-9.0, 0.5, 1.5, 99.0], np.float32), 1.0, 0, "int8")
    array([-9,  0,  2, 99], dtype=int8)
    >>> fastq.quantize_linear(np.full(4, 1.003), 1.0, dtype="bfloat16", rounding="stochastic", rng=1).tolist()
    [1.0078125, 1.0, 1.0, 1.0]
    """
    noise = None if rounding is None and rng is None else noise_of(rounding, rng)
    options = axis, block_size, saturate, dtype, convention, nan, rounding
    types = type(axis), type(block_size), type(saturate)
    result: Array = run_operation(QUANTIZE_LINEAR, x, out, scale, zero_point, options=options, types=types, noise=noise)
    return result


def fake_quantize(
    x: ArrayLike,
    dtype: str | QType | DTypeLike | None = None,
    *,
    qparams: QParams | None = None,
    axis: Axis = None,
    block_size: int = 0,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    nan: str = "raise",
    saturate: bool = True,
    out: Array | None = None,
    bits: int | None = None,
    range: str | MSERange = "minmax",
    importance: ArrayLike | None = None,
    rounding: str | None = None,
    rng: Any = None,
) -> Array:
    """Quantize and dequantize in one pass: return the values of the codes of x.

    Parameters
    ----------
    x, dtype, qparams, axis, block_size, symmetric, convention, nan, saturate
        As in `quantize`.
    out : ndarray, optional
        Array to write to, in the shape of x and the dtype of the result; may be x itself, which costs a copy.
    bits, range, importance, rounding, rng
        As in `quantize`.

    Returns
    -------
    ndarray
        Values in the dtype of x if that is a float, else in the compute type; `out` if given.

    Raises
    ------
    TypeError, ValueError, AxisError
        As `quantize`.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.fake_quantize(np.array([0.0, 0.26, 1.0], np.float32), "uint2")
    array([0.        , 0.33333334, 1.        ], dtype=float32)
    """
    noise = None if rounding is None and rng is None else noise_of(rounding, rng)
    if qparams is None:
        options = axis, block_size, symmetric, saturate, bits, dtype, convention, nan, range, rounding
        types = type(axis), type(block_size), type(symmetric), type(saturate), type(bits)
        result: Array = run_operation(FAKE_QUANTIZE, x, out, importance, options=options, types=types, noise=noise)
        return result
    check_beside_qparams(dtype, axis, block_size, symmetric, convention, bits, range, importance)
    p = as_qparams(qparams)
    options_beside = saturate, nan, p.key, rounding
    quantization: Array = run_operation(
        FAKE_QUANTIZE_WITH_QPARAMS,
        x,
        out,
        p.scale,
        p.zero_point,
        options=options_beside,
        types=(type(saturate),),
        qparams=p,
        noise=noise,
    )
    return quantization


def _resolve_quantize(arguments: Call, x: Array, out: Any, importance: Any) -> BoundCall:
    """Resolve `fastq.quantize` without parameters."""
    request = request_by_range(x.dtype, x.ndim, arguments.options, weighed=importance is not None)
    spec = spec_of("quantize", request, by_range=True)
    quantize_to_codes = bind_work(request, spec, codes_result(x, request.qtype, out), x, out, importance)

    def quantize_by_range(
        x: Array, out: Any, importance: Any, b: None, qparams: None, noise: Noise | None = None
    ) -> QuantizedArray:
        codes, params = quantize_to_codes(x, out, importance, noise)
        return without_checks(QuantizedArray, codes, params, x.shape)

    return quantize_by_range


QUANTIZE = Operation(
    name="QUANTIZE",
    function="quantize",
    resolve=_resolve_quantize,
    options=RangeOptions,
    operands=("x", "out", "importance"),
    labels="codes",
)


def _resolve_fake_quantize(arguments: Call, x: Array, out: Any, importance: Any) -> BoundCall:
    """Resolve `fastq.fake_quantize` without parameters."""
    request = request_by_range(x.dtype, x.ndim, arguments.options, weighed=importance is not None)
    values = dtype_of_fakes(x.dtype)
    result = result_of(x.shape, values, out, like=x)
    spec = spec_of("fake", request, by_range=True, values=values)
    quantize_to_values = bind_work(request, spec, result, x, out, importance)
    return lambda x, out, importance, b, qparams, noise=None: quantize_to_values(x, out, importance, noise)[0]


FAKE_QUANTIZE = Operation(
    name="FAKE_QUANTIZE",
    function="fake_quantize",
    resolve=_resolve_fake_quantize,
    options=RangeOptions,
    operands=("x", "out", "importance"),
    labels="elements",
)


def _resolve_choose_qparams(arguments: Call, x: Array, out: None, importance: Any) -> BoundCall:
    """Resolve `fastq.choose_qparams`."""
    request = request_by_range(x.dtype, x.ndim, arguments.options, weighed=importance is not None)
    parameters_of = bind_work(request, spec_of("quantize", request, by_range=True), None, x, None, importance)
    return lambda x, out, importance, *_: parameters_of(x, None, importance)[1]


CHOOSE_QPARAMS = Operation(
    name="CHOOSE_QPARAMS",
    function="choose_qparams",
    resolve=_resolve_choose_qparams,
    options=RangeOptions,
    operands=("x", "out", "importance"),
)


def _resolve_qparams_of_ranges(arguments: Call, lo: Array, hi: Array) -> BoundCall:
    """Resolve parameters of ranges that are known, each of which belongs to a part."""
    request = request_by_range(lo.dtype, lo.ndim, arguments.options)
    parameters_of = bind_ranges(request, spec_of("quantize", request, by_range=True), lo)
    return lambda lo, hi, *_: parameters_of(lo, hi, None)[1]


QPARAMS_OF_RANGES = Operation(
    name="QPARAMS_OF_RANGES",
    function="choose_qparams",
    resolve=_resolve_qparams_of_ranges,
    options=RangeOptions,
    operands=("lo", "hi"),
)


def _resolve_quantize_linear(arguments: Call, x: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.quantize_linear`."""
    dtypes_by_name = dtype_of(zero_point, "zero_point"), out.dtype if is_out(out) else None
    request = quantization.request_by_numbers(x.dtype, arguments.options, *dtypes_by_name)
    rules = request.rules
    parameters = rules.ready(scale, zero_point)
    request = request.with_granularity("x", x.shape, parameters.scale.shape, parameters.scale.size)
    parameters = parameters.in_shape(request.granularity.parameter_shape(x.shape))
    spec = spec_of("quantize", request)
    return bind_call(spec, request, arguments, rules, parameters, codes_result(x, request.qtype, out))


QUANTIZE_LINEAR = Operation(
    name="QUANTIZE_LINEAR",
    function="quantize_linear",
    resolve=_resolve_quantize_linear,
    options=LinearOptions,
    operands=("x", "out", "scale", "zero_point"),
    labels="elements",
)


def _resolve_quantize_with_qparams(arguments: Call, x: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.quantize` with parameters."""
    compute = quantization.check_input(x.dtype)
    rules, params, request = _values_by_qparams(arguments, x, compute)
    spec = spec_of("quantize", request)
    result = codes_result(x, params.dtype, out)
    convert = bind_call(spec, request, arguments, rules, numbers_of(params), result)

    # for parameters that are converted for this array, such as a scale of the other float type: the result has those
    @in_standard_mode
    def quantize_with_converted(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams, noise: Noise | None = None
    ) -> QuantizedArray:
        codes = convert(x, out, scale, zero_point, qparams, noise)
        return without_checks(QuantizedArray, codes, check_qparams(qparams, x.shape, compute), x.shape)

    def quantize_with_qparams(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams, noise: Noise | None = None
    ) -> QuantizedArray:
        return without_checks(QuantizedArray, convert(x, out, scale, zero_point, qparams, noise), qparams, x.shape)

    return quantize_with_qparams if params is arguments.qparams else quantize_with_converted


QUANTIZE_WITH_QPARAMS = Operation(
    name="QUANTIZE_WITH_QPARAMS",
    function="quantize",
    resolve=_resolve_quantize_with_qparams,
    options=QuantizeOptions,
    operands=("x", "out", "scale", "zero_point"),
    labels="codes",
)


def _resolve_fake_quantize_with_qparams(arguments: Call, x: Array, out: Any, scale: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.fake_quantize` with parameters."""
    rules, params, request = _values_by_qparams(arguments, x, quantization.check_input(x.dtype))
    values = quantization.dtype_of_fakes(x.dtype)
    spec = spec_of("fake", request, values=values)
    result = result_of(x.shape, values, out, like=x)
    return bind_call(spec, request, arguments, rules, numbers_of(params), result)


FAKE_QUANTIZE_WITH_QPARAMS = Operation(
    name="FAKE_QUANTIZE_WITH_QPARAMS",
    function="fake_quantize",
    resolve=_resolve_fake_quantize_with_qparams,
    options=QuantizeOptions,
    operands=("x", "out", "scale", "zero_point"),
    labels="elements",
)


def _values_by_qparams(arguments: Call, x: Array, compute: np.dtype[Any]) -> tuple[ParameterRules, QParams, Request]:
    """Return the rules for parameters, the call's parameters in the dtypes for values of x, and the request."""
    rules = rules_of(arguments.qparams, compute)
    params = qparams_for_plan(arguments.qparams, x.shape, compute, rules)
    return rules, params, quantization.request_by_qparams(x.dtype, x.ndim, params, arguments.options)
