"""Parameters of an axis that is counted from the end belong to arrays of any rank that has it."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference

DOCUMENTS = np.random.default_rng(42).normal(size=(3, 5, 8)).astype(np.float32)
SCHEMES = {  # what they are taken of, and what they are for
    "channels": ({"axis": -1}, DOCUMENTS[0], DOCUMENTS[0][2]),
    "channels of more axes": ({"axis": -1}, DOCUMENTS[0], DOCUMENTS),
    "channels but the last": ({"axis": -2}, DOCUMENTS[0], DOCUMENTS),
    "two axes": ({"axis": (-2, -1)}, DOCUMENTS, DOCUMENTS[1]),
    "two axes, swapped": ({"axis": (-1, -2)}, DOCUMENTS, DOCUMENTS[1]),
    "symmetric": ({"axis": -1, "symmetric": True}, DOCUMENTS[0], DOCUMENTS[0][2]),
    "embeddings": ({"axis": -1, "convention": "sentence-transformers"}, DOCUMENTS[0], DOCUMENTS[0][2]),
    "floats of 8 bits": ({"axis": -1, "dtype": "float8_e4m3fn"}, DOCUMENTS[0], DOCUMENTS[0][2]),
    "4 bits": ({"axis": -1, "dtype": "int4"}, DOCUMENTS[0], DOCUMENTS[0][2]),
    "16 bits": ({"axis": -1, "dtype": "uint16"}, DOCUMENTS[0], DOCUMENTS),
    "a search": ({"axis": -1, "range": "mse"}, DOCUMENTS[0], DOCUMENTS[0][2]),
    "float64": ({"axis": -1}, DOCUMENTS[0].astype(np.float64), DOCUMENTS[0][2].astype(np.float64)),
}


def chosen(name, api):
    options, of, other = SCHEMES[name]
    return api.choose_qparams(of, **{"dtype": "int8"} | options), other


FAST = "channels", "two axes, swapped"  # whose kernels other tests need too


@pytest.mark.slow("kernels of their own", quick=lambda api, name: api is reference or name in FAST)
@pytest.mark.parametrize("api", [reference, fastq], ids=lambda api: api.__name__)
@pytest.mark.parametrize("name", SCHEMES)
def test_an_axis_from_the_end_stays_so(api, name):
    # contract 3.2
    p, other = chosen(name, api)
    assert p.axis == SCHEMES[name][0]["axis"]
    row = np.broadcast_to(other, SCHEMES[name][1].shape) if other.ndim < SCHEMES[name][1].ndim else other
    wanted = reference.quantize(row, qparams=chosen(name, reference)[0])
    got, values = api.quantize(other, qparams=p), api.fake_quantize(other, qparams=p)
    place = 0 if other.ndim < row.ndim else ...
    same_bytes(got.unpacked(), wanted.unpacked()[place])
    same_bytes(values, reference.dequantize(wanted)[place])
    same_bytes(api.dequantize(got), values)
    assert api.compare(other, got).mse == pytest.approx(np.mean((other - values.astype(np.float64)) ** 2))


@pytest.mark.parametrize(
    "options", [{"axis": -1}, {"axis": -2}, {"axis": (-1, 0)}, {"axis": -1, "block_size": 4}], ids=str
)
def test_whatever_makes_parameters_keeps_the_axis(options, tmp_path):
    dask, da = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    x, axis = DOCUMENTS, options["axis"]
    q = reference.quantize(x, "int8", **options)
    assert q.axis == axis
    q.save(tmp_path / "q"), q.qparams.save(tmp_path / "p")
    lazy = fastq.dask.quantize(da.from_array(x, chunks=(1, 5, 8)), "int8", **options)
    made = fastq.load(tmp_path / "q"), lazy, dask.compute(lazy)[0], q[...], q.copy(), q.reshape(x.shape), q[1:]
    for each in (
        fastq.QParams.load(tmp_path / "p"),
        fastq.dask.choose_qparams(da.from_array(x), "int8", **options),
        *made,
    ):
        assert each.axis == axis
