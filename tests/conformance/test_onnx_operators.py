"""ONNX's quantizing operators: its node tests, its evaluator on every pair of dtypes, and ONNX Runtime's kernels."""

import dataclasses
import functools
import importlib
import pkgutil
import warnings

import ml_dtypes
import numpy as np
import pytest

import fastq

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
OPERATORS = vars(pytest.importorskip("onnx.reference.ops._op_list"))
TYPES = onnx.TensorProto
ML = ("bfloat16", "int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
ML = {name: np.dtype(getattr(ml_dtypes, name)) for name in ML}
F8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
ML |= {name: np.dtype(getattr(ml_dtypes, name)) for name in F8}
# dtypes by the names of ONNX's types, of which its schemas have lists
NAMES = {
    "FLOAT": np.dtype("f4"),
    "FLOAT16": np.dtype("f2"),
    "BFLOAT16": ML["bfloat16"],
    "INT32": np.dtype("i4"),
    "INT8": np.dtype("i1"),
    "UINT8": np.dtype("u1"),
    "INT16": np.dtype("i2"),
    "UINT16": np.dtype("u2"),
    "INT4": ML["int4"],
    "UINT4": ML["uint4"],
    "INT2": ML["int2"],
    "UINT2": ML["uint2"],
    "FLOAT8E4M3FN": ML["float8_e4m3fn"],
    "FLOAT8E4M3FNUZ": ML["float8_e4m3fnuz"],
    "FLOAT8E5M2": ML["float8_e5m2"],
    "FLOAT8E5M2FNUZ": ML["float8_e5m2fnuz"],
    "FLOAT8E8M0": ML["float8_e8m0fnu"],
    "FLOAT4E2M1": ML["float4_e2m1fn"],
    "FLOAT6E2M3": ML["float6_e2m3fn"],
    "FLOAT6E3M2": ML["float6_e3m2fn"],
}
OF_NUMBERS = {getattr(TYPES, name): dtype for name, dtype in NAMES.items() if hasattr(TYPES, name)}


def listed(operator, constraint):
    """The types that the newest schema of an operator lists, by their names here."""
    for each in onnx.defs.get_schema(operator).type_constraints:
        if each.type_param_str == constraint:
            return [text[len("tensor(") : -1].upper() for text in each.allowed_type_strs]
    raise AssertionError(constraint)


# --- the operators by fastq -------------------------------------------------------------------------------------------


def quantize_linear(
    x, scale, zero_point=None, *, axis=1, block_size=0, output_dtype=0, saturate=1, precision=0, api=fastq
):
    """QuantizeLinear; codes that share bytes are unpacked, as in ONNX's arrays."""
    dtype = OF_NUMBERS[output_dtype or TYPES.UINT8] if zero_point is None else zero_point.dtype
    convention = fastq.CONVENTIONS["onnx"]
    if not precision and x.dtype == scale.dtype:  # the precision of scales, by which results are rounded
        convention = dataclasses.replace(convention, operation_type="input")
    options = {"axis": axis, "block_size": block_size, "saturate": bool(saturate), "convention": convention}
    keeps = {"nan": "keep"} if dtype.name.startswith("float8") else {}
    codes = api.quantize_linear(x, scale, zero_point, dtype, **options, **keeps)
    packed = fastq.formats.qtypes.as_qtype(dtype).packed
    return (api.unpack(codes, dtype, shape=x.shape) if packed else codes).astype(dtype)


def dequantize_linear(codes, scale, zero_point=None, *, axis=1, block_size=0, output_dtype=0, api=fastq):
    """DequantizeLinear."""
    dtype = OF_NUMBERS[output_dtype].name if output_dtype else None
    return api.dequantize_linear(codes, scale, zero_point, axis=axis, block_size=block_size, dtype=dtype)


def dynamic_quantize_linear(x, *, api=fastq):
    """DynamicQuantizeLinear."""
    q = api.quantize(x, "uint8")
    return q.codes, q.scale, q.zero_point


def cast(x, *, to, saturate=1, api=fastq):
    """Cast to a float of few bits, or from codes: quantizing by a scale of 1."""
    one = np.float32(1)
    if OF_NUMBERS[to] in (np.float32, np.float16):
        return dequantize_linear(x, one, output_dtype=to, api=api)
    return quantize_linear(x, one, output_dtype=to, saturate=saturate, api=api)


# --- node tests -------------------------------------------------------------------------------------------------------

NODES = {
    "quantizelinear": (quantize_linear, "_axis _e4m3fn _e5m2 _uint16 _int16 _uint4 _int4 _uint2 _int2 _float4e2m1"),
    "dequantizelinear": (
        dequantize_linear,
        "_axis _e4m3fn _e4m3fn_float16 _e4m3fn_zero_point _e5m2 _uint16 _int16 _uint4 _int4 _uint2 _int2 _float4e2m1",
    ),
    "dynamicquantizelinear": (dynamic_quantize_linear, "_max_adjusted _min_adjusted"),
}
OF_NODES = {f"test_{name}{end}": run for name, (run, ends) in NODES.items() for end in ["", *ends.split()]}
OF_NODES |= dict.fromkeys(
    ("test_quantizelinear_blocked_asymmetric", "test_quantizelinear_blocked_symmetric"), quantize_linear
)
OF_NODES |= {"test_dequantizelinear_blocked": dequantize_linear}
FLOATS = [name for name in NAMES if name.startswith(("FLOAT8E4", "FLOAT8E5", "FLOAT4"))]
CASTS = [f"{a}_to_{b}" for name in FLOATS for real in ("FLOAT", "FLOAT16") for a, b in ((real, name), (name, real))]
CASTS += [f"{name}_to_{real}" for name in ("INT4", "UINT4", "INT2", "UINT2") for real in ("FLOAT", "FLOAT16")]
CASTS += [f"no_saturate_{a}_to_{b}" for a in ("FLOAT", "FLOAT16") for b in FLOATS if "8" in b]
# casts that do not quantize: to float4, of which the operator adds a zero point, to integers, which truncates, among
# integers, and to powers of two
OTHERS = [f"{real}_to_{name}" for name in ("INT4", "UINT4", "INT2", "UINT2") for real in ("FLOAT", "FLOAT16")]
OTHERS += ["INT4_to_INT8", "UINT4_to_UINT8", "INT2_to_INT8", "UINT2_to_UINT8"]
OTHERS += [f"e8m0_{a}" for real in ("FLOAT", "FLOAT16") for a in (f"{real}_to_FLOAT8E8M0", f"FLOAT8E8M0_to_{real}")]
OTHERS += [f"{real}_to_FLOAT4E2M1" for real in ("FLOAT", "FLOAT16")]
OF_NODES |= {f"test_cast_{name}": cast for name in CASTS if name not in OTHERS}
OTHERS = {f"test_cast_{name}" for name in OTHERS}


@functools.cache
def node_tests():
    """The node tests of the operators by name; those of functions written out are of other operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        node = pytest.importorskip("onnx.backend.test.case.node")
        for module in pkgutil.iter_modules(node.__path__):  # all of them make tests of all operators, for 3 s
            if module.name == "cast" or "quantize" in module.name:
                importlib.import_module(f"{node.__name__}.{module.name}")
    few = ("FLOAT8", "FLOAT4", "FLOAT6", "INT4", "INT2")
    return {
        case.name: case
        for case in node._NodeTestCases
        if not case.name.endswith("_expanded")
        and ("quantizelinear" in case.name or (case.name.startswith("test_cast_") and any(n in case.name for n in few)))
    }


def in_numpy(tensor):
    return onnx.numpy_helper.to_array(tensor) if isinstance(tensor, TYPES) else tensor


def same(found, wanted):
    """Whether arrays are the same to the bit, except for the payload of NaN."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    bits = np.dtype(f"u{found.itemsize}")
    number = (wanted == wanted) if wanted.dtype.kind != "V" or "float" in wanted.dtype.name else np.True_
    alike = (np.ascontiguousarray(found).view(bits) == np.ascontiguousarray(wanted).view(bits)) | ~number
    assert alike.all(), (found[~alike], wanted[~alike])
    assert np.array_equal(found != found, ~number) or np.all(number)


def test_all_node_tests_are_here():
    assert set(node_tests()) == {*OF_NODES} | OTHERS


# the reference, which kernels are compared with everywhere, and the kernels, each of which takes a second to compile
APIS = {"reference": fastq.reference, "kernels": fastq}
KERNELS = {"test_quantizelinear", "test_quantizelinear_axis", "test_dequantizelinear", "test_dequantizelinear_axis"}
KERNELS |= {name for name in OF_NODES if "dyn" in name}


@pytest.mark.slow("compiles kernels", quick=lambda name, api: api == "reference" or name in KERNELS)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", OF_NODES)
def test_node_tests(name, api):
    # contract 7.5
    case = node_tests()[name]
    (node,) = case.model.graph.node
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    for inputs, outputs in case.data_sets:
        found = OF_NODES[name](*map(in_numpy, inputs), **attributes, api=APIS[api])
        for ours, theirs in zip(found if isinstance(found, tuple) else (found,), outputs, strict=True):
            same(ours, in_numpy(theirs))


# --- the reference evaluator on every pair ----------------------------------------------------------------------------

SHAPE = (3, 8)
PLACES = [((), {}), ((3,), {"axis": 0}), ((8,), {"axis": -1}), ((3, 3), {"axis": 1, "block_size": 3})]


def scales(kind, shape, rng):
    dtype = NAMES[kind]
    if kind == "INT32":
        return rng.integers(1, 50, shape).astype(dtype)
    numbers = rng.uniform(0.02, 3, shape) if kind != "FLOAT8E8M0" else 2.0 ** rng.integers(-5, 3, shape)
    return np.asarray(numbers).astype(dtype)


def zeros(kind, shape, rng):
    """Zero points of codes: of floats and of int32 there is 0 only."""
    dtype = NAMES[kind]
    if kind.startswith("FLOAT") or kind == "INT32":
        return np.zeros(shape, np.float32).astype(dtype)
    info = ml_dtypes.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, np.int32, endpoint=True).astype(dtype)


def evaluated(operator, *inputs, **attributes):
    """What the evaluator gives. It knows no product of floats and powers of two, which float32 holds."""
    newest = max(int(name.rpartition("_")[2]) for name in OPERATORS if name.startswith(f"{operator}_"))
    implementation = OPERATORS[f"{operator}_{newest}"]
    inputs = [each.astype(np.float32) if each.dtype == ML["float8_e8m0fnu"] else each for each in inputs]
    with np.errstate(all="ignore"):
        return implementation.eval(*inputs, **attributes)


# dtypes whose kernels are compared too, and the values of each code that quick tests have
FEW = {"FLOAT", "BFLOAT16", "INT8", "INT32", "FLOAT8E4M3FN", "UINT4"}
QUICK = {"INT8": ("FLOAT", "BFLOAT16", "INT32")} | dict.fromkeys(["INT32", "FLOAT8E4M3FN", "UINT4"], ("FLOAT",))


def has_kernels(kind, *dtypes):
    """Whether kernels of rows are compared, too: by scales of float32."""
    return kind == "FLOAT" and FEW.issuperset(dtypes)


def of_every_pair(code, value):
    """Leave pairs of dtypes to the slow tests that compile a kernel unlike those of others."""

    def is_quick(kind, **dtypes):
        return not has_kernels(kind, *dtypes.values()) or dtypes[value] in QUICK.get(dtypes[code], ())

    return pytest.mark.slow("compiles a kernel for each pair", quick=is_quick)


def apis(shape, kind, *dtypes):
    """The reference, and the kernels of rows."""
    return APIS.values() if shape == SHAPE[:1] and has_kernels(kind, *dtypes) else [fastq.reference]


@of_every_pair("target", "source")
@pytest.mark.parametrize("kind", listed("QuantizeLinear", "T2"))
@pytest.mark.parametrize("source", listed("QuantizeLinear", "T1"))
@pytest.mark.parametrize("target", listed("QuantizeLinear", "T3"))
def test_quantize_linear_of_every_pair(target, source, kind):
    # contract 7.1, 7.2, 8.2 and 8.3
    rng = np.random.default_rng(42)
    for shape, options in PLACES:
        scale, zero_point = scales(kind, shape, rng), zeros(target, shape, rng)
        x = (rng.normal(0, 9, SHAPE) * 2.0 ** rng.integers(-3, 5, SHAPE)).astype(NAMES[source])
        # F is float64 of int32 and else float32; where scales are of x's dtype of half precision, the default too
        precisions = [TYPES.DOUBLE if source == "INT32" else TYPES.FLOAT]
        precisions += [0] if source == kind and source in ("FLOAT", "FLOAT16") else []
        for precision in precisions:
            how = options | {"precision": precision}
            wanted = evaluated("QuantizeLinear", x, scale, zero_point, **how)
            for api in apis(shape, kind if precision else "", source, target):
                same(quantize_linear(x, scale, zero_point, **how, api=api), wanted)


@of_every_pair("source", "result")
@pytest.mark.parametrize("result", listed("DequantizeLinear", "T3"))
@pytest.mark.parametrize("kind", listed("DequantizeLinear", "T2"))
@pytest.mark.parametrize("source", listed("DequantizeLinear", "T1"))
def test_dequantize_linear_of_every_pair(source, kind, result):
    rng, dtype = np.random.default_rng(42), NAMES[source]
    for shape, options in PLACES:
        scale, zero_point = scales(kind, shape, rng), zeros(source, shape, rng)
        if source.startswith("FLOAT"):
            codes = rng.normal(0, 2, SHAPE).astype(dtype)
        else:
            info = np.iinfo(dtype) if dtype.kind != "V" else ml_dtypes.iinfo(dtype)
            codes = rng.integers(info.min, info.max, SHAPE, np.int64, endpoint=True).astype(np.int32).astype(dtype)
            codes[0] = codes[0] * (source != "INT32")
        how = options | {"output_dtype": getattr(TYPES, result)}
        for given in ((zero_point,), ()):
            wanted = evaluated("DequantizeLinear", codes, scale, *given, **how)
            for api in apis(shape, kind, source, result):
                same(dequantize_linear(codes, scale, *given, **how, api=api), wanted)


# --- ONNX Runtime -----------------------------------------------------------------------------------------------------


def by_runtime(operator, inputs, result, **attributes):
    """What ONNX Runtime gives, None of a pair that it does not implement; inputs and results are cast at the edge."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    helper, wide = onnx.helper, TYPES.FLOAT
    given = [onnx.numpy_helper.from_array(np.asarray(each), f"i{k}") for k, each in enumerate(inputs)]
    names = [each.name for each in given]
    nodes = [helper.make_node(operator, names, ["y"], **attributes), helper.make_node("Cast", ["y"], ["z"], to=wide)]
    outputs = [helper.make_tensor_value_info("z", wide, None)]
    graph = helper.make_graph(nodes, "g", [], outputs, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, {})[0]
    except Exception:  # errors about missing kernels, in several classes
        return None


def test_onnx_runtime_decodes_the_same():
    rng, compared = np.random.default_rng(3), set()
    for source in listed("DequantizeLinear", "T1"):
        dtype = NAMES[source]
        for kind in ("FLOAT", "FLOAT16"):
            codes = np.asarray(rng.integers(-2, 3, SHAPE) if "U" not in source[:1] else rng.integers(0, 4, SHAPE))
            codes = codes * (10**6 + 1) if source == "INT32" else codes
            codes, scale = codes.astype(np.int32).astype(dtype), scales(kind, (), rng)
            found = by_runtime("DequantizeLinear", (codes, scale), kind)
            if found is not None:
                with np.errstate(over="ignore"):
                    same(fastq.reference.dequantize_linear(codes, scale).astype(np.float32), found)
                compared.add((source, kind))
    assert {("INT32", "FLOAT"), ("INT8", "FLOAT"), ("UINT16", "FLOAT"), ("INT4", "FLOAT")} <= compared
    assert len(compared) >= 16, compared


def test_onnx_runtime_encodes_the_same():
    rng, compared = np.random.default_rng(4), set()
    for target in listed("QuantizeLinear", "T3"):
        for source in ("FLOAT", "FLOAT16"):
            x, scale = (rng.normal(0, 9, SHAPE)).astype(NAMES[source]), scales(source, (), rng)
            zero_point = zeros(target, (), rng)
            found = by_runtime("QuantizeLinear", (x, scale, zero_point), target)
            if found is not None:
                codes = quantize_linear(x, scale, zero_point, precision=1, api=fastq.reference).astype(np.float32)
                same(codes, found)
                compared.add((target, source))
    assert {("INT8", "FLOAT"), ("UINT8", "FLOAT16"), ("INT4", "FLOAT"), ("FLOAT8E4M3FN", "FLOAT")} <= compared
    assert len(compared) >= 16, compared
