"""docs/howto/embeddings.md: codes of ScaNN and DuckDB, half precision and bits of pgvector."""

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

D, ROWS = 64, 2**14  # 2**20 values


def on_borders(steps):
    """Vectors with a half of their numbers on or next to a border of `steps`, a number for each dimension."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, D)).astype(np.float32)
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
