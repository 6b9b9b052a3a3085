"""The codec bitround: the chunks that numcodecs writes, under both names, and what it refuses."""

import json
import sys

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

zarr = pytest.importorskip("zarr", reason="no zarr")
from fastq.adapters.zarr import codecs  # noqa: E402


@pytest.fixture(autouse=True)
def registered():
    with zarr.config.set({}):
        fastq.zarr.register()
        yield


@pytest.mark.parametrize("error", [KeyError, zarr.errors.UnknownCodecError])
def test_a_codec_that_zarr_lacks_is_registered(monkeypatch, error):
    """By the error of each version of zarr."""

    def lacking(name):
        raise error(name)

    with monkeypatch.context() as patched:
        patched.setattr(zarr.registry, "get_codec_class", lacking)
        fastq.zarr.register()
    assert zarr.registry.get_codec_class("bitround") is codecs.CODECS["bitround"]


def written(x, name, keepbits):
    """The store of an array that went through the codec, and the array."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(
        store,
        shape=x.shape,
        chunks=(3, 5),
        dtype=x.dtype,
        filters=[{"name": name, "configuration": {"keepbits": keepbits}}],
        compressors=None,
        fill_value=0.1,
    )
    array[...] = x
    return store, zarr.open_array(store)


def chunk(store):
    return bytes(store._store_dict["c/0/0"].to_bytes())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("name", ["bitround", "numcodecs.bitround"])
def test_chunks_are_those_of_numcodecs(name, dtype):
    # contract 24.1
    x = np.random.default_rng(0).normal(size=(7, 10)).astype(dtype)
    x[0, :2] = np.inf, -0.0
    store, array = written(x, name, 5)
    native = x.astype(x.dtype.newbyteorder("="))
    same_bytes(array[...], fastq.bitround(native, keepbits=5))
    assert array.metadata.to_dict()["codecs"][0] == {"name": name, "configuration": {"keepbits": 5}}
    numcodecs = pytest.importorskip("numcodecs", reason="no numcodecs")
    whole = np.asarray(numcodecs.BitRound(5).encode(native[:3, :5].copy())).view(native.dtype)
    same_bytes(np.frombuffer(chunk(store), native.dtype).reshape(3, 5), whole)


def test_an_array_that_numcodecs_has_written_is_read_and_written_alike(monkeypatch):
    theirs = pytest.importorskip("zarr.codecs.numcodecs", reason="zarr without codecs of numcodecs")
    x = np.random.default_rng(1).normal(size=(7, 10)).astype(np.float32)
    own = codecs.BitRoundOfNumcodecs.own
    assert own is theirs.BitRound
    ours, _ = written(x, "numcodecs.bitround", 6)
    with zarr.config.set({"codecs.numcodecs.bitround": f"{own.__module__}.{own.__qualname__}"}):
        store, array = written(x, "numcodecs.bitround", 6)
        found = array[...]
    assert chunk(ours) == chunk(store)
    same_bytes(zarr.open_array(store)[...], found)


@pytest.mark.parametrize("name", codecs.CODECS)
def test_other_arrays_are_left_to_the_codec_of_zarr(monkeypatch, name):
    class Own(zarr.abc.codec.ArrayArrayCodec):
        is_fixed_size = True

        @classmethod
        def from_dict(cls, configuration):
            assert configuration == {"name": name, "configuration": {"keepbits": 3}}
            return cls()

        def to_dict(self):
            return {"name": name, "configuration": {"keepbits": 3}}

        async def _encode_single(self, chunk_array, chunk_spec):
            return chunk_array

        _decode_single = _encode_single

        def compute_encoded_size(self, input_byte_length, chunk_spec):
            return input_byte_length

    codec = codecs.CODECS[name]
    monkeypatch.setattr(codec, "own", None)
    known = zarr.config.get("codecs")
    with zarr.config.set({"codecs": {**known, name: f"{Own.__module__}.{Own.__qualname__}"}}):
        zarr.registry.register_codec(name, Own)
        fastq.zarr.register()
        fastq.zarr.register()
        assert codec.own is Own
        array = zarr.create_array(
            {}, shape=3, dtype="complex64", filters=[{"name": name, "configuration": {"keepbits": 3}}]
        )
        array[...] = [1, 2j, 3]
        assert array[...].tolist() == [1, 2j, 3]
        assert isinstance(array.metadata.codecs[0], Own)


def test_without_zarr(monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    monkeypatch.setitem(sys.modules, "zarr.registry", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install zarr"):
        fastq.zarr.register()


@pytest.mark.parametrize(
    ("name", "keepbits", "dtype", "error", "message"),
    [
        ("bitround", 0, "float32", ValueError, "keepbits must be at least 1, not 0"),
        ("numcodecs.bitround", -1, "float32", ValueError, "keepbits must be at least 0, not -1"),
        ("bitround", 2.0, "float32", TypeError, "keepbits must be an int"),
        ("bitround", 24, "float32", ValueError, "keepbits must be at most 23 for float32, not 24"),
        ("bitround", 3, "int32", ValueError, "bitround is for floats of 16, 32 and 64 bits, not"),
    ],
)
def test_refusals(name, keepbits, dtype, error, message):
    with pytest.raises(error, match=message):
        written(np.ones((7, 10), dtype), name, keepbits)


def test_numbers_of_numpy_are_written_as_those_of_python():
    configuration = codecs.BitRound(keepbits=np.int64(3)).to_dict()["configuration"]
    assert json.dumps(configuration) == '{"keepbits": 3}'
