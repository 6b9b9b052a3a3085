"""Floats of 4 and 6 bits of safetensors, written out byte by byte: their shapes count elements."""

import json

import numpy as np
import pytest
from catalogue import same_bytes
from commands import invoke

import fastq

E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
E2M3 = [k / 8 for k in range(8)] + [(1 + k / 8) * 2**e for e in range(3) for k in range(8)]
E3M2 = [k / 16 for k in range(4)] + [(1 + k / 4) * 2.0 ** (e - 2) for e in range(7) for k in range(4)]
VALUES = {"F4": E2M1, "F6_E2M3": E2M3, "F6_E3M2": E3M2}
FORMATS = {"F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn"}


def write(path, dtype, shape, seed=0):
    """A file with one tensor, a stream of bits, the first code in the lowest ones; its values."""
    table = np.array([*VALUES[dtype], *(-value for value in VALUES[dtype])], np.float32)
    bits = len(table).bit_length() - 1
    codes = np.random.default_rng(seed).integers(0, len(table), shape)
    number = sum(int(code) << bits * k for k, code in enumerate(codes.reshape(-1)))
    data = number.to_bytes(codes.size * bits // 8, "little")
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    values = table[codes]
    values[codes == len(table) // 2] = -0.0
    return values


@pytest.mark.parametrize("shape", [(4, 16), (4, 6), (8, 3), (8,), (2, 2, 4), (0, 4)])
@pytest.mark.parametrize("dtype", VALUES)
def test_packed_floats_are_codes_with_a_scale_of_one(tmp_path, dtype, shape):
    # contract 28.18
    path = tmp_path / "a.safetensors"
    values = write(path, dtype, shape)
    q = fastq.load(path)["w"]
    assert (q.dtype.name, q.shape, float(q.scale)) == (FORMATS[dtype], shape, 1.0)
    same_bytes(q.dequantize(), values)


def test_commands_have_their_numbers(tmp_path):
    path = tmp_path / "a.safetensors"
    values = write(path, "F4", (4, 16))
    (row,) = json.loads(invoke("inspect", path, "--json").stdout)["tensors"]
    assert (row["scheme"], row["lo"], row["hi"]) == ("F4", values.min(), values.max())
    other = tmp_path / "b.safetensors"
    write(other, "F4", (4, 16), seed=1)
    (row,) = json.loads(invoke("compare", path, other, "--json").stdout)["tensors"]
    assert row["sqnr_db"] is not None
