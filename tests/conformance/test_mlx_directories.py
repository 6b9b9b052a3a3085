"""Directories of MLX: the values that `fastq convert --dequantize` writes are those of `mlx.core.dequantize`."""

import json

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes

from fastq.tools.checkpoints.dequantization import as_floats
from fastq.tools.checkpoints.folder import ModelFolder

mx = pytest.importorskip("mlx.core", reason="mlx is not installed", exc_type=ImportError)

ROWS, COLUMNS = 512, 1024
NUMPY = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
AFFINE = [{"mode": "affine", "bits": b, "group_size": g} for b in (1, 2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
BYTES = [{"mode": mode, "bits": b, "group_size": g} for mode, b, g in (("mxfp4", 4, 32), ("mxfp8", 8, 32))]
BYTES += [{"mode": "nvfp4", "bits": 4, "group_size": 16}]


def weights(dtype):
    """A matrix with outliers, rows of zeros and of one value, and magnitudes of 2**-20 to 2**10."""
    rng = np.random.default_rng(4)
    w = rng.standard_t(3, (ROWS, COLUMNS)) * np.exp2(rng.integers(-20, 11, (ROWS, 1)))
    w[3], w[4], w[5] = 0, 0.3, -7
    return mx.array(w.astype(np.float32)).astype(getattr(mx, dtype))


def as_numpy(array, dtype):
    return np.array(array.view(mx.uint32 if dtype == "float32" else mx.uint16)).view(NUMPY[dtype])


def compared(folder, w, form, dtype, global_scale=None):
    given = {} if global_scale is None else {"global_scale": global_scale}
    codes, scales, *biases = mx.quantize(w, **form, **given)
    tensors = {"l.weight": codes, "l.scales": scales, **dict(zip(["l.biases"], biases, strict=False))}
    tensors |= {} if global_scale is None else {"l.global_scale": global_scale.reshape(1)}
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    config = {"model_type": "llama", "dtype": dtype, "quantization": form}
    (folder / "config.json").write_text(json.dumps(config))
    (shard,) = as_floats(ModelFolder.open(folder)).shards.values()
    values = mx.dequantize(codes, scales, *biases, **form, **given, dtype=getattr(mx, dtype))
    values = values.astype(getattr(mx, dtype))  # with a scale for the tensor they are float32
    expected = as_numpy(values, dtype)
    assert expected.shape == (ROWS, COLUMNS)
    same_bytes(shard.load("l.weight"), expected)


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("form", [*AFFINE, *BYTES], ids=lambda form: "{mode}-{bits}-{group_size}".format(**form))
def test_values(tmp_path, form, dtype):
    # contract 27.11
    compared(tmp_path / "m", weights(dtype), form, dtype)


@pytest.mark.parametrize("dtype", NUMPY)
def test_a_scale_for_the_tensor(tmp_path, dtype):
    # contract 27.11
    w = weights(dtype)
    compared(tmp_path / "m", w, BYTES[2], dtype, mx.abs(w).max().astype(mx.float32))


def llama(dtype):
    """A small model of mlx-lm, and its config."""
    llama = pytest.importorskip("mlx_lm.models.llama", reason="mlx-lm is not installed", exc_type=ImportError)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "llama", **sizes, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 512}
    config |= {"tie_word_embeddings": False}
    return _in_dtype(llama.Model(llama.ModelArgs(**config)), dtype), config


def mixture(dtype):
    """A small model with experts, which are stacked."""
    mixtral = pytest.importorskip("mlx_lm.models.mixtral", reason="mlx-lm is not installed", exc_type=ImportError)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = {"model_type": "mixtral", **sizes, "num_key_value_heads": 2, "num_local_experts": 4, "vocab_size": 512}
    return _in_dtype(mixtral.Model(mixtral.ModelArgs(**config)), dtype), config


def _in_dtype(model, dtype):
    model.set_dtype(getattr(mx, dtype))
    return model


def mixed(path, module):
    """Bits and groups of their own for some modules, and floats for others."""
    if path.endswith("v_proj"):
        return {"bits": 8, "group_size": 32}
    return not path.endswith("o_proj")


FORMS = {
    "4 bits": {"group_size": 64, "bits": 4},
    "3 bits": {"group_size": 32, "bits": 3},
    "mixed": {"group_size": 64, "bits": 4, "quant_predicate": mixed},
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "mxfp8": {"group_size": 32, "bits": 8, "mode": "mxfp8"},
    "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
    "nvfp4, a scale for each expert": {"group_size": 16, "bits": 4, "mode": "nvfp4", "global_scale": True},
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("make", "dtype"), [(llama, "bfloat16"), (llama, "float16"), (mixture, "bfloat16")])
def test_directories_of_mlx_lm(tmp_path, make, dtype, name):
    # contract 27.11
    model, config = make(dtype)
    utils = pytest.importorskip("mlx_lm.utils", reason="mlx-lm is not installed", exc_type=ImportError)
    tree = pytest.importorskip("mlx.utils", reason="mlx is not installed")
    model, config = utils.quantize_model(model, config | {"dtype": dtype}, **FORMS[name])
    utils.save_model(tmp_path / "m", model)
    utils.save_config(config, tmp_path / "m" / "config.json")
    modules = dict(model.named_modules())
    plain = as_floats(ModelFolder.open(tmp_path / "m"))
    count = 0
    for path, module in modules.items():
        if not hasattr(module, "mode"):
            continue
        biases = [module.biases] if module.get("biases") is not None else []
        form = {"bits": module.bits, "group_size": module.group_size, "mode": module.mode}
        stored = module.weight, module.scales, *biases
        of_tensor = module.get("global_scale")
        if of_tensor is None:
            values = mx.dequantize(*stored, **form, dtype=getattr(mx, dtype))
        else:
            experts = zip(module.weight, module.scales, of_tensor, strict=True)
            values = mx.stack([mx.dequantize(w, s, **form, global_scale=g) for w, s, g in experts])
            values = values.astype(getattr(mx, dtype))
        same_bytes(plain.load(f"{path}.weight"), as_numpy(values, dtype))
        count += 1
    assert count > 4
    parameters = dict(tree.tree_flatten(model.parameters()))
    ends = ".scales", ".biases", ".global_scale"
    assert plain.tensors.keys() == {key for key in parameters if not key.endswith(ends)}
