"""docs/howto/embeddings.md: codes of ScaNN, DuckDB and Redis, half precision and bits of pgvector, bits of Redis."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

D, ROWS = 64, 2**14  # 2**20 values


def on_borders(steps, shape=(ROWS, D)):
    """Vectors with a half of their numbers on or next to a border of `steps`, a number for each dimension."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    x[:, 3], x[:, 5], x[:, 7] = 0.0, 2.5, np.abs(x[:, 7])
    border = ((rng.integers(-126, 126, x.shape) + 0.5) * steps(x)).astype(np.float32)
    aim = rng.choice([-999, 0, 999], x.shape).astype(np.float32)
    border = np.where(aim == 0, border, np.nextafter(border, aim))
    inside = (rng.random(x.shape) < 0.5) & (np.abs(border) < np.abs(x).max(0)) & (np.abs(x) < np.abs(x).max(0))
    return np.where(inside, border, x)


@pytest.mark.parametrize("distance", ["dot_product", "squared_l2"])
def test_codes_of_scann(tmp_path, distance):
    scann = pytest.importorskip("scann", reason="scann is not installed")
    x = on_borders(lambda x: np.abs(x).max(0) / np.float32(127))
    searcher = scann.scann_ops_pybind.builder(x, 10, distance).score_brute_force(quantize=True).build()
    searcher.serialize(str(tmp_path))
    codes = fastq.quantize(x, "int8", axis=-1, symmetric=True, convention="tflite").codes
    same_bytes(codes, np.load(tmp_path / "int8_dataset.npy"))
    extremes = np.abs(x).max(0)
    multipliers = np.float32(127) / np.where(extremes == 0, np.float32(127), extremes)
    same_bytes(1 / (1 / multipliers), np.load(tmp_path / "int8_multipliers.npy"))


@pytest.mark.parametrize(("dtype", "name"), [(np.float32, "FLOAT"), (np.float64, "DOUBLE")])
def test_casts_of_duckdb(dtype, name):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    x = np.clip(40 * on_borders(lambda _: np.float32(1 / 40)), -128, 127).astype(dtype)
    vectors = arrow.table({"v": arrow.FixedSizeListArray.from_arrays(arrow.array(x.ravel()), D)})  # noqa: F841
    theirs = duckdb.sql(f"SELECT v::{name}[{D}]::TINYINT[{D}] AS codes FROM vectors").to_arrow_table()
    theirs = theirs.column(0).combine_chunks().flatten().to_numpy().reshape(x.shape)
    same_bytes(fastq.quantize_linear(x, 1.0, 0, "int8"), theirs)
    assert duckdb.sql("SELECT 2.5::TINYINT, 2.5::DOUBLE::TINYINT").fetchall() == [(3, 2)]
    for beyond in (127.5, 300.0, float("nan")):
        with pytest.raises(duckdb.ConversionException):
            duckdb.execute("SELECT ?::DOUBLE::TINYINT", [beyond]).fetchall()


PGVECTOR = """
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
const require = createRequire(process.argv[2] + '/');
const { PGlite } = await import(pathToFileURL(require.resolve('@electric-sql/pglite')));
const { vector } = await import(pathToFileURL(require.resolve('@electric-sql/pglite-pgvector')));
const database = new PGlite({ extensions: { vector } });
await database.exec('CREATE EXTENSION vector');
const results = [];
for (const row of JSON.parse(readFileSync(process.argv[3]))) {
  const text = '[' + row.join(',') + ']';
  const found = await database.query(
    'SELECT $1::text::vector::halfvec::text AS half, binary_quantize($1::text::vector)::text AS bits', [text]);
  results.push(found.rows[0]);
}
writeFileSync(process.argv[4], JSON.stringify(results));
"""


@pytest.fixture
def by_pgvector(tmp_path):
    """Return a function from vectors to their halfvec and their binary_quantize, by PGlite: PostgreSQL in Node.js."""
    modules = os.environ.get("FASTQ_NODE_MODULES", "")
    if not shutil.which("node") or not os.path.isdir(os.path.join(modules, "@electric-sql", "pglite-pgvector")):
        pytest.skip("FASTQ_NODE_MODULES names no folder with @electric-sql/pglite and @electric-sql/pglite-pgvector")

    def convert(x):
        names = [tmp_path / name for name in ("rows.mjs", "x.json", "results.json")]
        names[0].write_text(PGVECTOR)
        names[1].write_text(json.dumps([[str(number) for number in row] for row in x]))
        subprocess.run(["node", names[0], os.path.dirname(modules), *names[1:]], check=True)
        rows = json.loads(names[2].read_text())
        halves = np.array([json.loads(row["half"], parse_int=float) for row in rows], np.float32)
        bits = np.array([[int(bit) for bit in row["bits"]] for row in rows], np.uint8)
        return halves, bits

    return convert


def test_half_vectors_and_bits_of_pgvector(by_pgvector):
    """2**20 values, 1024 in a row: ties of float16 and numbers next to them, subnormal ones and both zeros."""
    rng = np.random.default_rng(2)
    shape = 1024, 1024
    halves = rng.integers(0, 0x7BFF, shape, dtype=np.uint16).view(np.float16).astype(np.float32)
    above = np.nextafter(halves.astype(np.float16), np.float16(np.inf)).astype(np.float32)
    x = np.where(rng.random(shape) < 0.7, (halves + above) / 2, halves)
    aim = rng.choice([-1e9, 0, 0, 1e9], shape).astype(np.float32)
    x = np.where(aim == 0, x, np.nextafter(x, aim)) * rng.choice([-1, 1], shape).astype(np.float32)
    x[:, :3] = 0.0, -0.0, np.float32(3e-8)
    x = np.clip(x, -65519.99, 65519.99)  # what would be infinite is an error there
    theirs, bits = by_pgvector(x)
    same_bytes(fastq.quantize_linear(x, 1.0, dtype="float16", saturate=False), theirs.astype(np.float16))
    same_bytes(fastq.binarize(x), np.packbits(bits, axis=1))


class Redis:
    """A connection to a server by its protocol, RESP 2."""

    def __init__(self, stream):
        self.stream = stream

    def call(self, commands):
        """Return the replies to commands, each of them a sequence of words; they are sent many at a time."""
        replies = []
        for start in range(0, len(commands), 256):
            some = commands[start : start + 256]
            for words in some:
                data = [word if isinstance(word, bytes) else str(word).encode() for word in words]
                self.stream.write(b"*%d\r\n" % len(data))
                self.stream.writelines(b"$%d\r\n%s\r\n" % (len(word), word) for word in data)
            self.stream.flush()
            replies += [self._reply() for _ in some]
        return replies

    def _reply(self):
        line = self.stream.readline()
        kind, text = line[:1], line[1:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(text))]
        if kind == b"$":
            return self.stream.read(int(text) + 2)[:-2]
        assert kind in b"+:", line
        return text


@pytest.fixture
def redis(tmp_path):
    """Return a connection to a server of its own."""
    server = os.environ.get("FASTQ_REDIS_SERVER")
    if not server:
        pytest.skip("FASTQ_REDIS_SERVER names no redis-server of version 8, the first with vector sets")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [server, "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):  # until the server listens
                with contextlib.suppress(ConnectionRefusedError):
                    connection = socket.create_connection(("127.0.0.1", port))
                    break
                time.sleep(0.1)
            with connection, connection.makefile("rwb") as stream:
                yield Redis(stream)
        finally:
            process.terminate()


def test_vector_sets_of_redis(redis):
    """2**20 values, 1024 in a row, as VEMB RAW returns them, with the length by which Redis divided them.

    Where that is 128, there are ties.
    """
    x = on_borders(lambda x: np.abs(x).max(0) / np.float32(127), (1024, 1024))
    x[:9, 16:], x[0] = 0.0, 0.0
    x[1:9, :8] = [127, 15.5, -3.5, 1.5, -0.5, 0, -0.0, 0]
    x[2:9:2] *= -1
    redis.call([("VADD", "codes", "FP32", row.tobytes(), k) for k, row in enumerate(x)])
    redis.call([("VADD", "bits", "FP32", row.tobytes(), k, "BIN") for k, row in enumerate(x)])
    codes, lengths = [], []
    for kind, raw, length, _ in redis.call([("VEMB", "codes", k, "RAW") for k in range(len(x))]):
        assert kind == b"int8"
        codes.append(np.frombuffer(raw, np.int8))
        lengths.append(np.float32(length))
    unit = x / np.array(lengths)[:, None]
    same_bytes(fastq.quantize(unit, "int8", axis=0, symmetric=True, convention="tflite").codes, np.array(codes))
    assert lengths[0] == 1.0
    bits = [raw for _, raw, _ in redis.call([("VEMB", "bits", k, "RAW") for k in range(len(x))])]
    same_bytes(fastq.binarize(x, bitorder="little"), np.array([np.frombuffer(row, np.uint8) for row in bits]))
