"""compressed-tensors' own bytes: of 10^7 values a preset, compressed by it and by `fastq convert` in its convention."""

import ml_dtypes
import numpy as np
import pytest
from torch_tensors import as_bytes, as_tensor

from fastq.tools.checkpoints.encoding import ScaleArithmetic, encode, global_scale, largest_magnitude
from fastq.tools.layouts.compressed_tensors import form_of
from fastq.tools.layouts.schemes import PRESETS

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
SHAPE = (2432, 4224)  # 10,272,768 values; neither fills chunks of 4 Mi values
# compressed-tensors computes powers of two in the dtype of the model, and float16 has too few
CASES = [
    (name, dtype) for name in PRESETS for dtype in DTYPES if not (dtype == "F16" and PRESETS[name].weights.scale_dtype)
]


def groups_of(x, args):
    """The matrix with the elements that share a scale in its last axes."""
    if args.strategy == "block":
        (rows, columns), (height, width) = x.shape, args.block_structure
        return x.reshape(rows // height, height, columns // width, width).transpose(1, 2).flatten(-2)
    return x if args.strategy == "channel" else x.unflatten(-1, (-1, args.group_size))


def compressed(x, name):
    """What compressed-tensors stores of a matrix."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(name, ["Linear"])
    args, tensor = scheme.weights, as_tensor(x)
    groups = groups_of(tensor, args)
    state = {"weight": tensor}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(tensor.min(), tensor.max())
    keep = {"keepdim": True} if args.strategy == "channel" else {}
    ends = groups.amin(-1, **keep), groups.amax(-1, **keep)
    scale, zero_point = calculate_qparams(*ends, args, global_scale=state.get("weight_global_scale"))
    state |= {"weight_scale": scale, "weight_zero_point": zero_point}
    format_name = infer_module_format(torch.nn.Linear, scheme).value
    assert format_name == PRESETS[name].format
    return BaseCompressor.get_value_from_registry(format_name).compress(state, scheme)


def converted(x, name, dtype, *, bit_exact=True):
    """What `fastq convert` stores of it."""
    scheme, arithmetic = PRESETS[name], ScaleArithmetic(dtype, bit_exact)
    grouped = scheme.weights.strategy == "tensor_group"
    factor = global_scale(largest_magnitude(x), arithmetic) if grouped else 1.0
    return encode(x, scheme, arithmetic, factor)[0] | form_of(scheme, x.shape, dtype).constants(factor)


def matrix(dtype):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(SHAPE, np.float32) * np.exp(rng.uniform(-6, 2, (SHAPE[0], 1))).astype(np.float32)
    return x.astype(DTYPES[dtype])


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_bytes_are_those_of_compressed_tensors(name, dtype):
    # contract 27.2 and 27.6
    x = matrix(dtype)
    theirs, ours = compressed(x, name), converted(x, name, dtype)
    assert {key for key, value in theirs.items() if value is not None} == set(ours)
    for key, array in ours.items():
        assert as_bytes(theirs[key]).tobytes() == array.tobytes(), key


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_scales_that_are_rounded_first_give_other_codes(dtype):
    x = matrix(dtype)
    theirs, ours = compressed(x, "W8A8"), converted(x, "W8A8", dtype, bit_exact=False)
    assert as_bytes(theirs["weight_scale"]).tobytes() == ours["weight_scale"].tobytes()
    differ = np.count_nonzero(theirs["weight"].numpy() != ours["weight"])
    assert 0.001 * x.size < differ < 0.2 * x.size
