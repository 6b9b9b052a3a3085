"""The disk cache of compiled kernels: it is found again, it is never wrong, and no trouble with it reaches the user."""

import shutil
import time
from pathlib import Path
from textwrap import dedent

import pytest
from edited import copy_of_package, edit
from subprocesses import HITS, SETUP, finish, run, start

import fastq
from fastq.engine.code.sources import Sources

PACKAGE = Path(fastq.__file__).parent
KERNELS = sorted(path.relative_to(PACKAGE).with_suffix("") for path in (PACKAGE / "kernels").rglob("[a-z]*.py"))

WORK = """
x = np.linspace(-3, 3, 1001, dtype=np.float32)

def check(dtype="int8"):
    codes = fastq.quantize_linear(x, 0.03, 0, dtype)
    assert np.array_equal(codes, reference.quantize_linear(x, 0.03, 0, dtype))
    assert fastq.minmax(x) == (-3, 3)
"""


def check(cache, code="check()", **arguments):
    """Check results in a process of its own; whether it compiled its kernels and drivers or loaded them."""
    output = run(dedent(code) + "\nprint(*hits())", setup=SETUP + HITS + WORK, NUMBA_CACHE_DIR=cache, **arguments)
    return {"0": "compiled", "1": "loaded", "0 1": "some loaded"}[" ".join(sorted(set(output.split())))]


def data_files(cache):
    """The files of kernels and drivers."""
    return [path for path in sorted(cache.rglob("*.code")) if not path.name.startswith("sources.")]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    assert check(cache) == "compiled"
    return cache


@pytest.fixture
def cache(filled, tmp_path):
    """A copy of a filled cache."""
    return shutil.copytree(filled, tmp_path / "cache")


# Found again


@pytest.mark.slow("processes that compile")
def test_second_process_loads_what_the_first_compiled(filled):
    before = data_files(filled)
    assert check(filled) == "loaded"
    assert data_files(filled) == before


@pytest.mark.slow("looks at every module of a process")
def test_loading_asks_numba_for_nothing(filled):
    """Its tables of typed functions, and SciPy for some of them, are for compiling."""
    code = "check()\nassert not {'numba.np.arraymath', 'scipy.linalg'} & set(sys.modules)"
    assert check(filled, code) == "loaded"


@pytest.mark.slow("compiles twice")
def test_parallel_drivers_are_found_too(tmp_path):
    code = "fastq.minmax(np.ones(1 << 17, np.float32))"
    for expected in ("compiled", "loaded"):
        assert check(tmp_path, code, NUMBA_NUM_THREADS=2) == expected


@pytest.mark.slow("four processes compile the same kernels")
def test_processes_that_start_together(tmp_path):
    code = """
    from pathlib import Path
    from fastq.plan import kernel_call
    Path(os.environ["READY"]).touch()
    while not Path(os.environ["GO"]).exists():
        time.sleep(0.001)
    check(os.environ["DTYPE"])
    """
    go, cache = tmp_path / "go", tmp_path / "cache"
    dtypes = ["int8", "uint8", "int8"]
    ready = [tmp_path / f"ready{k}" for k in range(len(dtypes))]
    processes = [
        start(code, setup=SETUP + WORK, NUMBA_CACHE_DIR=cache, GO=go, READY=path, DTYPE=dtype)
        for path, dtype in zip(ready, dtypes, strict=True)
    ]
    while not all(path.exists() for path in ready) and all(process.poll() is None for process in processes):
        time.sleep(0.01)
    go.touch()
    for process in processes:
        finish(process)
    assert check(cache, "check('int8'), check('uint8')") == "loaded"
    assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".code"]  # nothing temporary


# Never wrong


def copy_of_the_package(folder):
    return copy_of_package(folder) / "fastq"


def digest(package, *modules):
    return Sources(package).digest([f"fastq.{module}" for module in modules])


@pytest.fixture(scope="module")
def digests():
    """Digests of the package as it is, by module."""
    names = [".".join(path.parts) for path in KERNELS]
    return {name: digest(PACKAGE, name) for name in [*names, "kernels.body.convert", "engine.runtime.drive"]}


@pytest.mark.slow("a copy of the package for each of 22 sources", quick=lambda path: path.name == "formulas.py")
@pytest.mark.parametrize("path", KERNELS, ids=str)
def test_every_kernel_source_is_in_its_digest(tmp_path, digests, path):
    package, name = copy_of_the_package(tmp_path), ".".join(path.parts)
    assert digest(package, name) == digests[name]
    with (package / path).with_suffix(".py").open("a") as source:
        source.write("_ = 0\n")
    assert digest(package, name) != digests[name]


@pytest.mark.parametrize(
    ("path", "module", "another"),
    [
        ("kernels/formulas.py", "kernels.body.convert", "engine.runtime.drive"),
        ("kernels/traversal/block_extremes.py", "kernels.traversal.blocks", "kernels.traversal.runs"),
        ("formats/floats.py", "kernels.traversal.runs", "engine.runtime.drive"),
        ("formats/gguf.py", "kernels.ggml.blocks32", "kernels.traversal.runs"),
        ("engine/runtime/workers.py", "engine.runtime.drive", "kernels.traversal.runs"),
        ("kernels/args.py", "kernels.traversal.runs", None),
        ("kernels/__init__.py", "kernels.traversal.runs", "engine.runtime.drive"),
        ("engine/simd/__init__.py", "kernels.traversal.runs", None),
        ("engine/jit/emission.py", "engine.runtime.drive", None),
    ],
)
def test_digest_of_a_kernel_is_that_of_what_it_imports(tmp_path, digests, path, module, another):
    package = copy_of_the_package(tmp_path)
    with (package / path).open("a") as source:
        source.write("_ = 0\n")
    assert digest(package, module) != digests[module]
    assert another is None or digest(package, another) == digests[another]


def test_a_comment_is_in_the_digest(tmp_path, digests):
    """Digests are those of bytes: to tell what is idle in a source takes longer than to compile a kernel once more."""
    package = copy_of_the_package(tmp_path)
    with (package / "kernels" / "args.py").open("a") as source:
        source.write("# the end\n")
    assert digest(package, "kernels.traversal.runs") != digests["kernels.traversal.runs"]


def test_sources_that_are_missing_or_wrong_have_no_digest(tmp_path):
    package = copy_of_the_package(tmp_path)
    assert digest(package, "kernels.nothing") is None
    sources = Sources(package)
    (package / "kernels" / "args.py").write_text("")
    assert sources.digest(["fastq.kernels.traversal.runs"]) is None  # it was edited since
    shutil.rmtree(package)
    assert digest(package, "kernels.traversal.runs") is None


@pytest.mark.slow("each process compiles its kernels")
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("kernels.rule", "fastq.kernels.rule", "fastq"),
        ("kernels.rule", "fastq.engine.jit", "fastq.kernels.rule"),
        ("formats.floats", "fastq.formats.floats", "fastq.engine.jit"),
    ],
    ids=["imported and read", "read", "imported"],
)
def test_edit_while_a_process_runs(tmp_path, name, before, after):
    """Nothing is saved, neither old code as that of the new source nor new code as that of the old one."""
    package, cache = copy_of_the_package(tmp_path), tmp_path / "cache"
    code = f"""
    import importlib
    from pathlib import Path
    importlib.import_module({before!r})
    with Path(fastq.__file__).parent.joinpath(*{name!r}.split(".")).with_suffix(".py").open("a") as source:
        source.write("_ = 0\\n")
    importlib.import_module({after!r})
    assert fastq.quantize_linear(np.ones(9, np.float32), 0.5, 0, "int8").tolist() == [2] * 9
    """
    run(code, setup="import numpy as np\nimport fastq\n", package=package, NUMBA_CACHE_DIR=cache)
    assert not [path for path in data_files(cache) if path.name.startswith("runs.")]


@pytest.mark.slow("compiles three times")
def test_edit_of_a_kernel_source_changes_results(tmp_path):
    package, cache = copy_of_the_package(tmp_path), tmp_path / "cache"
    formulas = package / "kernels" / "formulas.py"
    code = """
    codes = fastq.quantize_linear(np.full(9, 0.75, np.float32), 1.0, 0, "int8")
    print(*set(codes.tolist()), *hits())
    """

    def result():
        return run(code, setup=SETUP + HITS, package=package, NUMBA_CACHE_DIR=cache)

    assert result() == "1 0 0\n"
    edit(formulas, '"rint" if', '"floor" if')
    assert result() == "0 0 1\n"  # the driver does not use formulas
    assert result() == "0 1 1\n"
    edit(formulas, '"floor" if', '"rint" if')
    assert result() == "1 1 1\n"


@pytest.mark.slow("each process compiles its kernels")
def test_actions_have_code_of_their_own(tmp_path):
    """Same function, same dtypes: only the type of an argument that is nothing at run time says what to do."""
    code = """
    x = np.array([np.nan, 0.75, -2, 1], np.float32)
    same = lambda a, b: a.codes.tobytes() + a.scale.tobytes() == b.codes.tobytes() + b.scale.tobytes()
    for symmetric in (False, True):
        arguments = dict(dtype="int8", axis=0, block_size=2, symmetric=symmetric, nan="zero")
        assert same(fastq.quantize(x, **arguments), reference.quantize(x, **arguments))
        try:
            fastq.quantize(x, **arguments | {"nan": "raise"})
        except ValueError as error:
            assert "1 NaN" in str(error)
        else:
            raise AssertionError("NaN was taken")
    """
    assert check(tmp_path, code) == "compiled"
    assert check(tmp_path, code) == "loaded"


@pytest.mark.slow("each process compiles its kernels")
@pytest.mark.parametrize("setting", ["NUMBA_OPT", "NUMBA_SLP_VECTORIZE"])
def test_settings_of_numba_have_code_of_their_own(cache, setting):
    assert check(cache, **{setting: 1}) == "compiled"
    assert check(cache) == "loaded"


def test_functions_of_this_process_cannot_be_called(tmp_path):
    (tmp_path / "absolute.py").write_text(
        "import ctypes\nlabs = ctypes.CDLL(None).labs\n"
        "labs.argtypes, labs.restype = [ctypes.c_long], ctypes.c_long\ndef absolute(n):\n    return labs(n)\n"
    )
    code = f"""
    sys.path.insert(0, {str(tmp_path)!r})
    from numba import int64
    from absolute import absolute
    from fastq.engine.jit import UntraceableError
    try:
        jit.kernel(absolute, int64, int64)
    except UntraceableError as error:
        print(str(error).startswith("absolute: "))
    """
    assert run(code, setup=SETUP + HITS, NUMBA_CACHE_DIR=tmp_path / "cache") == "True\n"
    assert not data_files(tmp_path)


@pytest.mark.slow("each process compiles its kernels")
def test_other_cpu(cache):
    assert check(cache, NUMBA_CPU_NAME="generic") == "compiled"
    assert check(cache, NUMBA_CPU_NAME="generic") == "loaded"
    assert check(cache) == "loaded"


# Places that cannot be written


@pytest.mark.slow("each process compiles its kernels")
def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    code = "from fastq.engine.code import code_folder\ncheck()\nassert code_folder() is None"
    assert check(tmp_path / "file" / "cache", code) == "compiled"
    assert not data_files(tmp_path)


@pytest.mark.slow("each process compiles its kernels")
def test_full_disk(tmp_path):
    code = """
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    check()
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    """
    pytest.importorskip("resource", reason="this system has no limit on the size of a file")
    cache = tmp_path / "cache"
    assert check(cache, code) == "compiled"
    assert not [path for path in cache.rglob("*") if path.is_file()]  # nothing half-written either
    assert check(cache) == "compiled"
    assert check(cache) == "loaded"


@pytest.mark.slow("each process compiles its kernels")
def test_folder_removed_while_in_use(tmp_path):
    code = f"""
    import shutil
    check("int8")
    shutil.rmtree({str(tmp_path / "cache")!r})
    check("uint8")
    """
    assert check(tmp_path / "cache", code) == "compiled"


# Damage


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 0x10
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


@pytest.mark.slow("each process compiles its kernels")
@pytest.mark.parametrize("damage", [truncate, flip, empty], ids=lambda damage: damage.__name__)
def test_damaged_files_are_compiled_anew(cache, damage):
    for path in data_files(cache):
        damage(path)
    assert check(cache) == "compiled"
    assert check(cache) == "loaded"


@pytest.mark.slow("each process compiles its kernels")
def test_file_of_another_kernel(cache):
    kernels = [path for path in data_files(cache) if path.name.startswith("runs.runs")]
    assert len(kernels) == 2
    first, second = (path.read_bytes() for path in kernels)
    kernels[0].write_bytes(second)
    kernels[1].write_bytes(first)
    assert check(cache) == "some loaded"
    assert check(cache) == "loaded"


@pytest.mark.slow("each process compiles its kernels")
def test_file_that_cannot_be_read(cache):
    for path in data_files(cache):
        path.unlink()
        path.mkdir()
    assert check(cache) == "compiled"


def test_every_kind_of_damage(tmp_path):
    """On a kernel that takes no time to compile, so that there can be many."""
    (tmp_path / "tiny.py").write_text("def double(p, n):\n    return p[0] + n\n")
    code = f"""
    import ctypes
    from pathlib import Path
    sys.path.insert(0, {str(tmp_path)!r})
    from numba import int64, types
    from tiny import double

    def loads():
        "Whether the kernel was loaded; it works anyway."
        jit._functions.clear()
        address = jit.kernel(double, int64, types.CPointer(int64), int64)
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(address)
        assert run(ctypes.addressof(ctypes.c_int64(40)), 2) == 42
        return hits()[-1]

    assert not loads()
    path, = Path({str(tmp_path)!r}).rglob("tiny.*.code")
    content, rng = path.read_bytes(), np.random.default_rng(0)
    damaged = [content[:size] for size in (0, 1, 31, 32, 33, *rng.integers(34, len(content), 10), len(content) - 1)]
    damaged += [content + b"x", content[:32] + content[33:], b"x" * len(content), bytes(len(content))]
    for position in (0, 31, 32, 33, *rng.integers(34, len(content), 25), len(content) - 1):
        flipped = bytearray(content)
        flipped[position] ^= 1 << rng.integers(8)
        damaged.append(bytes(flipped))
    for piece in damaged:
        path.write_bytes(piece)
        assert not loads()
        assert loads()
    print(len(damaged))
    """
    assert run(code, setup=SETUP + HITS, NUMBA_CACHE_DIR=tmp_path / "cache") == "50\n"


# While it compiles


@pytest.mark.slow("each process compiles its kernels")
@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_afterwards_as_before(tmp_path, collects):
    code = f"""
    import gc
    {"gc.enable()" if collects else "gc.disable()"}
    made = []

    def observed(*arguments):
        made.append(gc.isenabled())
        if len(made) == 1:
            raise MemoryError
        return right(*arguments)

    right, jit.compile_library = jit.compile_library, observed
    for _ in range(2):
        try:
            check()
        except MemoryError:
            pass
        assert gc.isenabled() == {collects}
    assert len(made) > 2 and not any(made)
    """
    check(tmp_path, code)
