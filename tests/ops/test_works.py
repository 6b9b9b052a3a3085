"""The works that a wheel has machine code of: all that pages, commands and usual calls of public functions need."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import usual_calls

import fastq
from fastq.ops import works
from fastq.ops.call_text import result_of

ROOT = Path(__file__).parents[2]
COMPILES = ROOT / "tests" / "support" / "compiles"
USUAL = ROOT / "tests" / "support" / "usual_calls.py"

PLANNED = """
import sys
from fastq.engine.code import shipped
recipes = shipped.record()
from fastq.engine.runtime import threadpool
from fastq.ops import works
from fastq.ops.call_text import result_of
for threads in (1, 2, 16):
    threadpool.set_num_threads(threads)
    works.plan(works.WORKS)
assert "numba" not in sys.modules
print(*recipes, sep="\\n")
"""


def planned_by(*command):
    """Return the lines of a program that plans calls as several threads would."""
    environment = os.environ | {"NUMBA_NUM_THREADS": "16", "PYTHONPATH": str(ROOT)}
    options = {"check": True, "timeout": 600, "cwd": ROOT, "env": environment, "stdout": subprocess.PIPE}
    return subprocess.run([sys.executable, *command], **options, text=True).stdout.splitlines()


@pytest.fixture(scope="module")
def planned():
    """Names of all functions that a wheel with machine code has."""
    return set(planned_by("-c", PLANNED))


@pytest.mark.slow("plans what a wheel has")
def test_all_works_are_planned_without_numba(planned):
    assert len(planned) > 250


PAGES = {  # what they need besides the package
    "README.md": "ml_dtypes",
    "docs/start/index.md": "matplotlib safetensors rich",
    "docs/start/tutorial.md": "matplotlib",
    "docs/choose.md": "matplotlib",
    "docs/howto/calibration.md": "matplotlib",
    "docs/howto/embeddings.md": "faiss usearch",
    "docs/howto/frameworks.md": "torch jax onnxruntime onnx",
    "docs/howto/gguf.md": "rich gguf matplotlib",
    "docs/howto/images.md": "",
    "docs/howto/sound.md": "soundfile",
    "docs/howto/models.md": "safetensors rich",
    "docs/howto/requantize.md": "",
    "docs/howto/stores.md": "xarray zarr dask netCDF4",
    "docs/howto/rounding.md": "xarray zarr dask netCDF4 matplotlib",
    "docs/howto/dask.md": "dask distributed",
    "fastq demo": "rich",
}


USERS = {"docs/howto/compiled.md"}  # functions of users, which Numba compiles


def test_all_pages_with_examples_are_run():
    folders = (ROOT / "docs").glob("choose.md"), *((ROOT / "docs" / each).glob("*.md") for each in ("start", "howto"))
    pages = [ROOT / "README.md", *(page for folder in folders for page in folder)]
    shown = {page for page in pages if "{code-cell}" in page.read_text() or ">>> " in page.read_text()}
    assert {page.relative_to(ROOT).as_posix() for page in shown} == PAGES.keys() - {"fastq demo"} | USERS


@pytest.mark.slow("plans what a wheel has, and runs a page, which compiles what no earlier run has")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_needs_no_function_that_a_wheel_lacks(page, planned, tmp_path):
    for library in PAGES[page].split():
        pytest.importorskip(library, reason=f"no {library}")
    command = [sys.executable, str(ROOT / "tests" / "support" / "run_page.py"), str(ROOT / page)]
    if page == "fastq demo":
        command = [sys.executable, "-m", "fastq", "demo"]
    (tmp_path / "here").mkdir()
    _run_and_compare(command, planned, tmp_path / "here")


def _run_and_compare(command, planned, folder):
    """Run a program in a folder; it asks for functions, of which a wheel has all."""
    written, path = folder.parent / "compiled", os.pathsep.join((str(COMPILES), str(ROOT)))
    environment = os.environ | {"FASTQ_COMPILED": str(written), "PYTHONPATH": path, "MPLBACKEND": "Agg"}
    subprocess.run(command, check=True, timeout=1500, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    lines = written.read_text().splitlines()
    assert lines
    assert [line for line in lines if line.split()[0] not in planned] == []


@pytest.mark.slow("plans what a wheel has")
def test_usual_calls_of_a_public_function_need_no_function_that_a_wheel_lacks(planned):
    pytest.importorskip("ml_dtypes")
    lines = planned_by(USUAL)
    assert len(lines) > 200
    assert [line for line in lines if line.split()[0] not in planned] == []


# settings, what a file is read with, what makes the code itself
NO_CALLS = "load show_versions warmup get_num_threads set_num_threads get_result_pool_limit set_result_pool_limit"


def test_each_public_function_has_ten_usual_calls():
    named = Counter(re.match(r"[\w.]+", call)[0] for call in set(usual_calls.USUAL))
    public = {name for name in fastq.__all__ if callable(getattr(fastq, name)) and not name[0].isupper()}
    wanted = public - set(NO_CALLS.split()) | {"Calibrator", *usual_calls.OF_CORNERS}
    assert {name: named[name] for name in wanted if named[name] < 10} == {}
    assert {name for name in named if name.split(".")[0] in usual_calls.CORNERS} == set(usual_calls.OF_CORNERS)


@pytest.mark.parametrize(
    ("line", "calls"),
    [
        ("f(x)", ["f(x)"]),
        ("{f|g}(x{|, axis=0})", ["f(x)", "f(x, axis=0)", "g(x)", "g(x, axis=0)"]),
        ('f("{$large}")', [f'f("{name}")' for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")]),
    ],
)
def test_a_line_stands_for_all_choices(line, calls):
    assert list(works.calls(f"\n{line}\n")) == calls


class Numbers:
    """What has a number, and numbers by place."""

    def __init__(self, size):
        self.size = size

    def __getitem__(self, places):
        return places

    def plus(self, number=1):
        return self.size + number


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("f(3)", 3),
        ("f(-3.5)", -3.5),
        ('f((n, m // 32 or 1, "x"))', (8, 1, "x")),
        ("made(size=n * 2).plus()", 17),
        ("made(1).plus(number=made(2).size)", 3),
        ("made(0)[0]", 0),
        ("made(0)[: n // 2]", slice(None, 4, None)),
        ("made(0)[:, ::2]", (slice(None), slice(None, None, 2))),
    ],
)
def test_a_text_is_a_call(text, result):
    assert result_of(text, {"f": lambda x: x, "made": Numbers, "n": 8, "m": 16}) == result


@pytest.mark.parametrize(
    "text", ["f.__class__", "f(lambda: 1)", "[1, 2]", "n + 1", "f(x for x in n)", "n and 1", "not n"]
)
def test_a_text_that_is_no_call_is_refused(text):
    with pytest.raises(ValueError, match="no part of a call"):
        result_of(text, {"f": lambda x: x, "n": 8})


def test_a_text_with_another_name_is_refused():
    with pytest.raises(NameError, match="no name of calls: open"):
        result_of("open(n)", {"n": 8})


COMMANDS = """
fastq quantize model.safetensors rows.safetensors
fastq quantize model.safetensors blocks.safetensors --dtype int4 --axis -1 --block-size 32
fastq dequantize rows.safetensors plain.safetensors
fastq inspect model.safetensors
fastq compare model.safetensors rows.safetensors
fastq suggest model.safetensors --sqnr 30
fastq bitround model.nc digits.nc --digits 4
fastq bitround model.nc bits.nc --keepbits 7
fastq bitround model.nc within.nc --max-error t2m=0.1
fastq pack model.nc packed.nc
fastq gguf model.gguf q4_0.gguf Q4_0 --range mse
fastq gguf model.gguf q4_k_m.gguf Q4_K_M
fastq gguf half.gguf half_q4_k_m.gguf Q4_K_M
fastq gguf half.gguf half_q8_0.gguf Q8_0
fastq gguf q4_k_m.gguf f32.gguf --dequantize
fastq gguf q4_k_m.gguf f16.gguf F16 --dequantize
fastq compare model.gguf q4_k_m.gguf
"""


@pytest.mark.slow("runs commands, which compile what no earlier run has")
def test_usual_commands_need_no_function_that_a_wheel_lacks(planned, tmp_path):
    for library in ("click", "rich", "safetensors", "gguf", "xarray", "netCDF4"):
        pytest.importorskip(library, reason=f"no {library}")
    import gguf_files
    import xarray
    from safetensors.numpy import save_file

    here, x = tmp_path / "here", gguf_files.values((256, 512))
    here.mkdir()
    save_file({"a.weight": x, "b.weight": x.astype("float16")}, here / "model.safetensors")
    gguf_files.write(here / "model.gguf", {"blk.0.attn_v.weight": x, "blk.0.ffn_up.weight": x})
    half = {name: (gguf_files.encoded(x, kind), kind) for name, kind in (("a.weight", "F16"), ("b.weight", "BF16"))}
    gguf_files.write(here / "half.gguf", half)
    xarray.Dataset({"t2m": (("y", "x"), 280 + x)}).to_netcdf(here / "model.nc")
    for command in COMMANDS.strip().splitlines():
        _run_and_compare([sys.executable, "-m", *command.split()], planned, here)


def test_a_work_that_is_none_is_refused():
    with pytest.raises(ValueError, match="names"):
        fastq.warmup("int9")


def test_every_work_is_named_where_it_is_told_of():
    assert all(f'"{name}"' in fastq.warmup.__doc__ for name in works.WORKS)
