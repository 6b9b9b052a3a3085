"""fastq suggest finds the cheapest scheme: no smaller one that it names is good enough; files keep its promise."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import source_models
from commands import invoke, run
from gguf_files import write as write_gguf
from safetensors.numpy import save_file

from fastq import reference
from fastq.formats.conventions.table import as_convention

RNG = np.random.default_rng(5)


def normal(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def spoiled(index, factor=40.0, shape=(48, 80)):
    x = normal(*shape)
    x[index] *= factor
    return x


ARRAYS = {
    "normal": normal(40, 96),
    "outlier column": spoiled(np.s_[:, 7]),
    "outlier row": spoiled(np.s_[5]),
    "both": spoiled((np.s_[:, 7], np.s_[3])[0]) * np.where(np.arange(48) == 3, 30, 1).astype("f4")[:, None],
    "rows of unlike size": normal(32, 64) * np.logspace(-2, 2, 32, dtype="f4")[:, None],
    "not centred": np.maximum(normal(24, 64), 0) + np.float32(0.5),
    "one large element": spoiled((3, 4), 1e4),
    "zeros": np.zeros((8, 64), "f4"),
    "constant": np.full((8, 33), 3.7, "f4"),
    "constant columns": np.broadcast_to(normal(50), (30, 50)).copy(),
    "integers": RNG.integers(-7, 8, (16, 40)).astype("f4"),
    "one row": normal(1, 200),
    "one column": normal(200, 1),
    "tiny": normal(2, 3),
    "short rows": normal(64, 3),
    "odd": normal(37, 41),
    "three axes": spoiled(np.s_[:, :, 2], shape=(6, 10, 24)),
    "middle axis": spoiled(np.s_[:, 2], shape=(6, 10, 24)),
    "kernels": normal(16, 8, 3, 3),
    "float16": spoiled(np.s_[:, 7]).astype("f2"),
    "bfloat16": spoiled(np.s_[:, 7]).astype(ml_dtypes.bfloat16),
    "float64": spoiled(np.s_[:, 7]).astype("f8"),
    "small float16": (normal(32, 32) * 1e-6).astype("f2"),
    "large": normal(16, 32) * np.float32(1e30),
    "heavy": RNG.standard_t(2, (40, 64)).astype("f4"),
    "vector": normal(300),
    "vector of outliers": spoiled(np.s_[::50], shape=(300,)),
}
QUICK = ("both", "zeros", "one row", "three axes", "bfloat16", "float64", "vector of outliers")  # one of each kind
PLAIN = [f"int{bits}" for bits in range(2, 9)]
BLOCKS = {"mxfp4": 4, "mxfp6_e2m3": 6, "mxfp6_e3m2": 6, "mxfp8_e4m3": 8, "mxfp8_e5m2": 8, "mxint8": 8, "nvfp4": 4}


def schemes(ndim):
    """All that the help names."""
    axes = range(ndim)
    places = [(None, 0), *((axis, 0) for axis in axes if ndim > 1), *((axis, 32) for axis in axes)]
    for (axis, block), symmetric in itertools.product(places, (True, False)):
        for dtype in PLAIN:
            yield {"dtype": dtype, "axis": axis, "block_size": block, "symmetric": symmetric}
        for dtype in ("float8_e4m3fn", "float8_e5m2") if symmetric else ():
            yield {"dtype": dtype, "axis": axis, "block_size": block, "symmetric": True}
    for dtype, axis in itertools.product(BLOCKS, axes):
        yield {"dtype": dtype, "axis": axis, "block_size": 16 if dtype == "nvfp4" else 32, "symmetric": True}


def stored_bytes(shape, itemsize, dtype, axis, block_size, symmetric):
    """Bytes of codes, scales, zero points and shapes, by the layout of compressed-tensors."""
    *outer, row = shape
    rows, words = math.prod(outer), lambda count, bits: -(-count * bits // 32) * 4
    bits = BLOCKS.get(dtype) or (8 if dtype.startswith("float8") else int(dtype[3:]))
    if bits == 8:
        codes = math.prod(shape)
    elif dtype in BLOCKS:
        codes = rows * -(-row * bits // 8)
    else:
        codes = rows * words(row, bits) + 8 * len(shape)
    if axis is None:
        scales = (1,)
    elif block_size:
        scales = tuple(-(-n // block_size) if k == axis else n for k, n in enumerate(shape))
    else:
        scales = tuple(n if k == axis else 1 for k, n in enumerate(shape))
    nbytes = codes + math.prod(scales) * (1 if dtype in BLOCKS else itemsize) + 4 * (dtype == "nvfp4")
    if symmetric:
        return nbytes
    if bits == 8 or len(scales) == 1:
        return nbytes + math.prod(scales)
    *before, height, width = scales
    return nbytes + math.prod(before) * words(height, bits) * width


def measured(x, scheme):
    if x.dtype.itemsize == 2:
        scheme = scheme | {"convention": replace(as_convention("onnx"), stored_type="input")}
    return reference.compare(x, reference.quantize(x, **scheme)).sqnr_db


def suggested(path, sqnr):
    result = invoke("suggest", path, "--sqnr", repr(sqnr), "--json")
    assert result.exit_code in (0, 3), result.stderr
    return json.loads(result.stdout)["tensors"], result


@pytest.mark.slow("tries all schemes", quick=lambda name: name in QUICK)
@pytest.mark.parametrize("name", ARRAYS)
def test_nothing_cheaper_is_good_enough(here, monkeypatch, name):
    monkeypatch.setattr(
        "fastq.tools.cli.scheme_search.PART", 500
    )  # several parts, some of which are enough to give a scheme up
    x = ARRAYS[name]
    if x.ndim == 1:
        np.save("x.npy", x)
    else:
        save_file({"x": x}, "x.safetensors")
    path = "x.npy" if x.ndim == 1 else "x.safetensors"
    every = {
        tuple(scheme.items()): (stored_bytes(x.shape, x.dtype.itemsize, **scheme), measured(x, scheme))
        for scheme in schemes(x.ndim)
    }
    every = {scheme: pair for scheme, pair in every.items() if pair[0] < x.nbytes}
    ratios = sorted({ratio for _, ratio in every.values() if math.isfinite(ratio)})
    near = [ratios[len(ratios) // 3] + 1e-9, ratios[len(ratios) // 2] - 1e-9] if ratios else []
    for sqnr in (-3.0, 10.0, 20.0, 30.0, 40.0, 300.0, *near):
        (entry,), result = suggested(path, sqnr)
        reaching = [(nbytes, -ratio) for nbytes, ratio in every.values() if ratio >= sqnr]
        ratio = math.inf if entry["sqnr_db"] is None else entry["sqnr_db"]
        options = {key: entry["scheme"][key] for key in ("dtype", "axis", "block_size", "symmetric")}
        nbytes, exact = every[tuple(options.items())]
        assert entry["bytes"] == nbytes
        assert ratio == pytest.approx(exact, abs=1e-9)
        assert result.exit_code == (0 if reaching else 3)
        if reaching:
            fewest, best = min(reaching)  # the best one of those with as few bytes
            assert (nbytes, ratio) == (fewest, pytest.approx(-best, abs=1e-9)), (sqnr, options)
        else:
            assert ratio == pytest.approx(max(ratio for _, ratio in every.values()), abs=1e-9)


def kept(entries, source, quantized):
    """Compare what was promised with what `fastq compare` measures in the file that a command wrote."""
    written = {entry["name"]: entry for entry in json.loads(run("compare", source, quantized, "--json"))["tensors"]}
    for entry in entries:
        found = written[entry["name"]]
        promised = math.inf if entry["sqnr_db"] is None else entry["sqnr_db"]
        measured = math.inf if found["sqnr_db"] is None else found["sqnr_db"]
        assert (entry["bytes"], entry["bytes_before"]) == (found["bytes_b"], found["bytes_a"]), entry
        assert promised == pytest.approx(measured, abs=1e-9), entry


@pytest.mark.slow("compiles kernels of many schemes")
@pytest.mark.parametrize("sqnr", [5, 20, 30, 43.5, 60])
def test_quantized_files_keep_what_was_promised(here, sqnr):
    """The columns of one matrix are 40 times larger than the others, and the rows of the other."""
    arrays = {name: x for name, x in ARRAYS.items() if x.ndim > 1}
    if sqnr == 30:
        arrays = {name: arrays[name] for name in ("outlier column", "outlier row", "float16", "zeros")}
    save_file(arrays, "in.safetensors")
    entries, result = suggested("in.safetensors", float(sqnr))
    Path("like.json").write_text(result.stdout)
    run("quantize", "in.safetensors", "out.safetensors", "--like", "like.json")
    kept(entries, "in.safetensors", "out.safetensors")
    reached = [entry for entry in entries if entry["sqnr_db"] is None or entry["sqnr_db"] >= sqnr]
    assert len(reached) == len(entries) or sqnr == 60
    if len(reached) == len(entries):
        run("compare", "in.safetensors", "out.safetensors", "--at-least", str(sqnr))


def test_a_quantized_vector_keeps_what_was_promised(here):
    np.save("x.npy", ARRAYS["vector of outliers"])
    entries, result = suggested("x.npy", 30.0)
    Path("like.json").write_text(result.stdout)
    run("quantize", "x.npy", "out.safetensors", "--like", "like.json")
    kept(entries, "x.npy", "out.safetensors")


@pytest.mark.slow("compiles kernels of many types", quick=lambda sqnr: sqnr == 20)
@pytest.mark.parametrize("sqnr", [12, 20, 36])
def test_gguf_files_keep_what_was_promised(here, sqnr):
    width = 64 if sqnr == 20 else 256
    arrays = {"a.weight": normal(24, width), "b.weight": normal(8, width) ** 3, "c.weight": normal(300, width)}
    arrays["c.weight"][::50] *= 100
    write_gguf("in.gguf", arrays)
    entries, result = suggested("in.gguf", float(sqnr))
    Path("like.json").write_text(result.stdout)
    run("gguf", "in.gguf", "out.gguf", "--like", "like.json")
    kept(entries, "in.gguf", "out.gguf")


@pytest.mark.slow("compiles kernels of many schemes", quick=lambda sqnr: sqnr == 20)
@pytest.mark.parametrize("sqnr", [5, 20, 28, 42])
def test_models_keep_what_was_promised(here, sqnr):
    """Matrices that readers fuse share a scheme, and in NVFP4 a scale, which is that of the largest of them."""
    shapes = {
        "q_proj": (64, 256),
        "k_proj": (32, 256),
        "v_proj": (32, 256),
        "o_proj": (256, 128),
        "down_proj": (64, 144),
    }
    arrays = {f"l.{name}.weight": normal(*shape) for name, shape in shapes.items()}
    arrays["l.k_proj.weight"] *= 30
    source_models.write(Path("model"), arrays)
    entries, result = suggested("model", float(sqnr))
    Path("like.json").write_text(result.stdout)
    run("convert", "model", "out", "--like", "like.json")
    kept(entries, "model", "out")
    assert len({entry["scheme"] for entry in entries if entry["name"][2] in "qkv"}) == 1


@pytest.mark.parametrize("is_model", [False, True])
@pytest.mark.parametrize("spoiled", [np.nan, np.inf])
def test_values_without_a_range_are_refused_by_the_name_of_their_tensor(here, is_model, spoiled):
    x = normal(64, 128)
    x[[3, 5], 7] = spoiled
    source_models.write(Path("model"), {"l.q_proj.weight": x})
    result = invoke("suggest", "model" if is_model else "model/model.safetensors")
    assert result.exit_code == 1
    assert "no scheme holds NaN or infinite values: l.q_proj.weight\n" in result.stderr


@pytest.mark.parametrize("factor", [1e38, 1e-44])
def test_a_scheme_that_can_not_hold_the_values_is_not_suggested(here, factor):
    x = np.clip(normal(16, 64), -3, 3).astype(np.float64) * factor
    save_file({"x": x.astype(np.float32)}, "x.safetensors")
    (entry,), result = suggested("x.safetensors", 20.0)
    Path("like.json").write_text(result.stdout)
    run("quantize", "x.safetensors", "out.safetensors", "--like", "like.json")
    kept([entry], "x.safetensors", "out.safetensors")
