"""What docs/howto/embeddings.md says of faiss, usearch, sqlite-vec and sentence-transformers: bits, floats, codes."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

D, ROWS = 256, 4096  # 2**20 values


@pytest.fixture(scope="module")
def vectors():
    """Numbers of both signs, zeros of either sign, and the smallest numbers next to zero."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, D), np.float32)
    for share, value in ((0.05, 0.0), (0.05, -0.0), (0.02, 1e-45), (0.02, -1e-45)):
        x[rng.random(x.shape) < share] = value
    return x


@pytest.fixture(scope="module")
def faiss():
    return pytest.importorskip("faiss", reason="faiss-cpu is not installed")


def by_function(faiss, x, name):
    bits = np.zeros((len(x), D // 8), np.uint8)
    arguments = (D, len(x)) if name == "fvecs2bitvecs" else ()
    sizes = () if arguments else (x.size,)
    getattr(faiss, name)(*sizes, faiss.swig_ptr(x), faiss.swig_ptr(bits), *arguments)
    return bits


def by_lsh(faiss, x, *, trained):
    index = faiss.IndexLSH(D, D, False, trained)
    index.train(x)
    return index.sa_encode(x), faiss.vector_to_array(index.thresholds) if trained else np.float32(0)


def by_rabitq(faiss, x):
    index = faiss.IndexRaBitQ(D)
    index.train(x)
    return index.sa_encode(x)[:, : D // 8], faiss.vector_to_array(index.center)


FROM_ZERO = {"bitorder": "little", "inclusive": True}
ABOVE_ZERO = {"bitorder": "little"}


def test_bits_of_faiss(faiss, vectors):
    same_bytes(fastq.binarize(vectors, **FROM_ZERO), by_function(faiss, vectors, "fvecs2bitvecs"))
    same_bytes(fastq.binarize(vectors, **ABOVE_ZERO), by_function(faiss, vectors, "real_to_binary"))
    for trained in (False, True):
        bits, thresholds = by_lsh(faiss, vectors, trained=trained)
        same_bytes(fastq.binarize(vectors - thresholds, **FROM_ZERO), bits)
    bits, center = by_rabitq(faiss, vectors)
    same_bytes(fastq.binarize(vectors - center, **ABOVE_ZERO), np.ascontiguousarray(bits))


def test_bits_of_another_order_find_nothing(faiss, vectors):
    """An index of faiss's own bits, asked with the same vectors as bits of either order."""
    index = faiss.IndexBinaryFlat(D)
    index.add(by_lsh(faiss, vectors, trained=False)[0])
    numbers = np.arange(ROWS)
    found = {
        order: index.search(fastq.binarize(vectors, bitorder=order, inclusive=True), 1)[1][:, 0]
        for order in ("big", "little")
    }
    assert np.mean(found["little"] == numbers) > 0.99
    assert np.mean(found["big"] == numbers) < 0.02


def test_bits_of_sqlite_vec(vectors):
    apsw = pytest.importorskip("apsw", reason="apsw, a SQLite that loads extensions, is not installed")
    sqlite_vec = pytest.importorskip("sqlite_vec", reason="sqlite-vec is not installed")
    database = apsw.Connection(":memory:")
    database.enable_load_extension(True)
    database.load_extension(sqlite_vec.loadable_path())
    rows = [database.execute("SELECT vec_quantize_binary(?)", (row.tobytes(),)).fetchone()[0] for row in vectors]
    same_bytes(fastq.binarize(vectors, **ABOVE_ZERO), np.frombuffer(b"".join(rows), np.uint8).reshape(ROWS, -1))


def test_bits_of_sentence_transformers(vectors):
    quantization = pytest.importorskip(
        "sentence_transformers.util.quantization", reason="sentence-transformers is not installed"
    )
    same_bytes(fastq.binarize(vectors), quantization.quantize_embeddings(vectors, "ubinary"))
    same_bytes(fastq.binarize(vectors, dtype="int8"), quantization.quantize_embeddings(vectors, "binary"))


@pytest.mark.parametrize(
    ("kind", "dtype", "bits"), [("QT_8bit", "uint8", 8), ("QT_6bit", "uint8", 6), ("QT_4bit", "uint4", 4)]
)
@pytest.mark.parametrize("d", [13, 16])
def test_later_vectors_of_a_trained_quantizer(faiss, vectors, kind, dtype, bits, d):
    """Constant dimensions among them, whose later values are others, and values beyond the range."""
    x = vectors.reshape(-1, D)[:, :d].copy()
    x[:, 2], x[:, 5] = 3.7, 0.0
    later = 1.5 * vectors.reshape(-1, D)[:, d : 2 * d]
    quantizer = faiss.ScalarQuantizer(d, getattr(faiss.ScalarQuantizer, kind))
    quantizer.train(x)
    fewer = {"bits": bits} if bits == 6 else {}
    params = fastq.choose_qparams(x, dtype, axis=-1, convention="faiss", **fewer)
    for values in (x, later):
        codes = fastq.quantize(values, qparams=params).unpacked()
        packed = np.packbits(codes[..., None] >> np.arange(bits, dtype=np.uint8) & 1, axis=-1, bitorder="little")
        unpadded = np.unpackbits(packed, axis=-1, bitorder="little", count=bits)
        theirs = quantizer.compute_codes(values)
        same_bytes(np.packbits(unpadded.reshape(len(values), -1), axis=1, bitorder="little"), theirs)
        if d % 8:  # otherwise its decoder fuses a product and a sum
            same_bytes(fastq.quantize(values, qparams=params).dequantize(), quantizer.decode(theirs))
    assert set(fastq.quantize(later, qparams=params).unpacked()[:, 2].tolist()) == {0}
    one = fastq.quantize(later[0], qparams=params).codes
    same_bytes(one, fastq.quantize(later, qparams=params).codes[0])  # axis -1 is that of one vector, too


@pytest.fixture(scope="module")
def index_of():
    index = pytest.importorskip("usearch.index", reason="usearch is not installed")
    return lambda dtype, metric="ip": index.Index(ndim=D, metric=metric, dtype=dtype)


def stored(index, count, dtype):
    return np.stack([index.get(key, dtype) for key in range(count)])


@pytest.mark.parametrize("metric", ["ip", "cos", "l2sq"])
def test_usearch_scales_floats_to_unit_length(index_of, vectors, metric):
    """And leaves codes as they are."""
    numbers = np.arange(ROWS)
    x = vectors * np.linspace(0.2, 3, ROWS, dtype=np.float32)[:, None]
    index = index_of("i8", metric)
    index.add(numbers, x)
    lengths = np.sqrt(np.square(x, dtype=np.float64).sum(1, keepdims=True))
    same_bytes(stored(index, ROWS, np.int8), np.trunc(127 * (x / lengths)).astype(np.int8))
    codes = fastq.quantize(x, "int8", symmetric=True).codes
    index = index_of("i8", metric)
    index.add(numbers, codes)
    same_bytes(stored(index, ROWS, np.int8), codes)


@pytest.mark.parametrize(("name", "dtype"), [("float8_e4m3fn", "e4m3"), ("float8_e5m2", "e5m2")])
def test_usearch_takes_float8_codes_as_bytes_whose_dtype_is_said(index_of, vectors, name, dtype):
    codes = fastq.quantize_linear(vectors, 1.0, dtype=name)
    own = codes.astype(np.float32)
    index = index_of(dtype)
    index.add(np.arange(ROWS), codes.view(np.uint8), dtype=dtype)
    same_bytes(stored(index, ROWS, np.float32) + 0.0, own + 0.0)
    index = index_of(dtype)
    with pytest.raises(ValueError, match="buffer"):
        index.add(np.arange(ROWS), codes)
    index.add(np.arange(ROWS), codes.view(np.uint8))  # without a dtype they are read as bits, the highest first
    read = stored(index, ROWS, np.float32)
    same_bytes(read, np.unpackbits(codes.view(np.uint8)[:, : D // 8], axis=1).astype(np.float32))
    assert np.mean(read == own) < 0.1


def test_products_of_codes_with_offsets_rank_badly():
    """Why one symmetric scale is advised: the codes of sentence-transformers have an offset in each dimension."""
    rng = np.random.default_rng(1)
    topics = rng.standard_normal((300, D), np.float32) + 0.8 * rng.standard_normal(D, np.float32)
    x = topics[rng.integers(0, 300, 5000)] + 0.7 * rng.standard_normal((5000, D), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    asked, kept = x[:100], x[100:]

    def nearest(a, b):
        return np.argsort(-(a.astype(np.float32) @ b.astype(np.float32).T), axis=1)[:, :10]

    def recall(codes):
        found = nearest(codes[:100], codes[100:])
        return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, nearest(asked, kept), strict=True)])

    theirs = recall(fastq.quantize(x, "int8", axis=-1, convention="sentence-transformers").codes)
    ours = recall(fastq.quantize(x, "int8", symmetric=True).codes)
    assert ours > 0.95
    assert theirs < ours - 0.05


@pytest.mark.parametrize("dimension", [32, 128, 384])
def test_codes_of_usearch_on_the_border_of_two(dimension):
    """Vectors of small whole numbers, and of one number alone: usearch's products may be one less than a quotient."""
    index_of = pytest.importorskip("usearch.index", reason="usearch is not installed").Index
    rng = np.random.default_rng(0)
    rows = 2**20 // dimension
    x = rng.integers(-4, 5, (rows, dimension)).astype(np.float32)
    x[::2] = 0
    x[::2, :1] = rng.uniform(-9, 9, (len(x[::2]), 1))
    x = rng.permuted(x, axis=1)
    index = index_of(ndim=dimension, metric="ip", dtype="i8", connectivity=2, expansion_add=1)
    index.add(np.arange(rows), x)
    lengths = np.linalg.norm(x.astype(np.float64), axis=1)[:, None]
    ours = fastq.quantize_linear(x * (127 * (1 / lengths)), 1.0, 0, "int8", convention="usearch")
    same_bytes(ours, np.asarray(index.get(np.arange(rows), np.int8)))


def test_codes_of_duckdb():
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    rng = np.random.default_rng(0)
    x = rng.uniform(-128, 127, 2**20)
    x[::2] = np.rint(2 * x[::2]) / 2
    for dtype in (np.float32, np.float64):
        table = pyarrow.table({"x": x.astype(dtype)})
        theirs = duckdb.from_arrow(table).project("CAST(x AS TINYINT) AS code").fetchnumpy()["code"]
        same_bytes(fastq.quantize_linear(x.astype(dtype), 1.0, 0, "int8"), np.asarray(theirs))
