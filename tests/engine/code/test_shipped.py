"""Machine code that comes with the package: used where it fits, the same bytes, and else as if it was not there."""

import ctypes
import dataclasses
import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import fastq
from fastq.engine.code import lookup, shipped
from fastq.engine.runtime import driver, workers
from fastq.system import cpu, tuning

ROOT, PACKAGE = Path(__file__).parents[3], Path(fastq.__file__).parent
COMPILES = ROOT / "tests" / "support" / "compiles"
LEVEL = next(iter(cpu.levels()), None)
HATCH_BUILD = runpy.run_path(str(ROOT / "hatch_build.py"), run_name="__mp_main__")
PLATFORMS = {row.name: row for row in HATCH_BUILD["PLATFORMS"]}
PLATFORM = next((row.name for row in PLATFORMS.values() if (row.system, row.machine) == (cpu.SYSTEM, cpu.MACHINE)), "")
needs_level = pytest.mark.skipif(LEVEL is None or not shutil.which("cc"), reason="no level for this CPU, or no linker")

# a wheel's library, of one work with one call
BUILD = """
import multiprocessing
import runpy
multiprocessing.set_start_method("spawn")  # as on macOS
from fastq.ops import works
works.SHAPES = {"one": [[64, 64]]}
works.WORKS = {"one": {"one": 'quantize(x, "int8")'}}
runpy.run_path("hatch_build.py", run_name="__main__")
"""


def build(target):
    """Make a library for the level of this CPU."""
    told = {"NUMBA_CPU_NAME": LEVEL.cpu, "NUMBA_CPU_FEATURES": LEVEL.features, "NUMBA_NUM_THREADS": "256"}
    environment = os.environ | told | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", BUILD, PLATFORM, LEVEL.name, str(target)],
        env=environment,
        check=True,
        cwd=ROOT,
        timeout=600,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The package as in a wheel with machine code."""
    folder = tmp_path_factory.mktemp("wheel")
    package = shutil.copytree(PACKAGE, folder / "fastq", ignore=shutil.ignore_patterns("__pycache__", "machine_code"))
    (package / "machine_code").mkdir()
    build(package / "machine_code" / LEVEL.name)
    return package


@pytest.fixture
def package(built, tmp_path):
    """A copy of it."""
    return shutil.copytree(built, tmp_path / "fastq")


CALL = """
import sys
import numpy as np
import fastq
x = np.linspace(-3, 3, 64 * 64, dtype=np.float32).reshape(64, 64)
q = fastq.quantize(x, "int8")
expected = fastq.reference.quantize(x, "int8")
assert q.codes.tobytes() == expected.codes.tobytes() and q.scale == expected.scale
"""


def call(package, code="", compiles="-", **environment):
    """Make the call in a process of its own; return whether it has imported Numba, and the rest of its output."""
    path = os.pathsep.join((str(package.parent), str(COMPILES)))
    home = {"PYTHONPATH": path, "FASTQ_COMPILED": compiles, "NUMBA_CACHE_DIR": str(package.parent / "cache")}
    script = CALL + dedent(code) + "\nprint('numba' in sys.modules)"
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, env=os.environ | home | environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_level
def test_a_first_call_compiles_nothing_and_imports_no_numba(package):
    code = "from fastq.engine.code import found_functions, level\nprint(level(), len(found_functions()))"
    assert call(package, code) == f"{LEVEL.name} 2\nFalse\n"


@needs_level
def test_what_did_not_come_with_the_package_is_compiled(package):
    written = package.parent / "compiled"
    code = "assert fastq.minmax(x) == (-3, 3)"
    assert call(package, code, str(written)) == "True\n"
    assert "MinMaxOperands" in written.read_text()
    assert written.read_text().count("\n") == 1


def _damage(path, change):
    content = path.read_bytes()
    path.write_bytes(change(content))


def level_of(package, **environment):
    """Return the level of the library that a process uses."""
    command = [sys.executable, "-P", "-c", "from fastq.engine.code import level\nprint(level())"]
    home = {"PYTHONPATH": str(package.parent), "NUMBA_CACHE_DIR": str(package.parent / "cache")}
    return subprocess.check_output(command, env=os.environ | home | environment, text=True, timeout=600).strip()


HEADERS = {"no JSON": "{", "no text": b"\xff", "a list": "[]", "no names": "{}"}


@needs_level
@pytest.mark.parametrize(
    "damage", ["a byte", "the end", "no header", *HEADERS, "another system", "another source", "an old Python"]
)
def test_a_library_that_does_not_fit_is_not_used(package, damage):
    library = package / "machine_code" / LEVEL.name
    header = Path(f"{library}.json")
    told = json.loads(header.read_text())
    if damage == "a byte":
        _damage(library, lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    elif damage == "the end":
        _damage(library, lambda content: content[:-100])
    elif damage == "no header":
        header.unlink()
    elif damage in HEADERS:
        content = HEADERS[damage]
        header.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif damage == "another system":
        library.write_bytes(b"MZ")
        header.write_text(json.dumps(told | {"content": hashlib.sha256(b"MZ").hexdigest()}))
    elif damage == "another source":
        with (package / "kernels" / "formulas.py").open("a") as source:
            source.write("# another\n")
    else:
        header.write_text(json.dumps(told | {"layout": 32}))
    assert level_of(package) == ""


@needs_level
def test_the_next_level_is_used_where_the_best_is_damaged(package):
    best, *others = [each.name for each in cpu.levels()]
    if not others:
        pytest.skip("this CPU has one level")
    folder = package / "machine_code"
    for ending in ("", ".json"):
        shutil.copy(folder / f"{best}{ending}", folder / f"{others[0]}{ending}")
    assert level_of(package) == best
    (folder / best).write_bytes(b"")
    assert level_of(package) == others[0]


@needs_level
@pytest.mark.slow("compiles the call")
def test_without_a_library_that_fits_all_is_compiled(package):
    _damage(package / "machine_code" / LEVEL.name, lambda content: content[:-1])
    written = package.parent / "compiled"
    assert call(package, compiles=str(written)) == "True\n"
    assert written.read_text().count("\n") == 2


@needs_level
def test_settings_of_numba_that_change_code_are_heard(package):
    assert level_of(package) == level_of(package, NUMBA_NUM_THREADS="1") == LEVEL.name
    assert level_of(package, NUMBA_CPU_NAME=LEVEL.cpu) == ""


@needs_level
@pytest.mark.slow("compiles the call twice")
def test_code_for_this_very_cpu_is_made_on_purpose_and_used_first(package):
    code = """
    from fastq.ops import works
    from fastq.engine.code import level
    before = level()
    works.SHAPES = {"one": [[64, 64]]}
    works.WORKS = {"one": {"one": 'quantize(x, "int8")'}}
    fastq.warmup("one", native=True)
    print(before, repr(level()))
    q = fastq.quantize(x, "int8")
    assert q.codes.tobytes() == expected.codes.tobytes()
    """
    written = package.parent / "compiled"
    assert call(package, code, str(written)) == f"{LEVEL.name} '{LEVEL.name}'\nTrue\n"
    kept = set((package.parent / "cache").rglob("*.code"))
    assert call(package, compiles=str(written)) == "False\n"
    assert set((package.parent / "cache").rglob("*.code")) == kept  # all was loaded from disk


@needs_level
@pytest.mark.slow("compiles a kernel")
def test_what_nobody_made_for_this_cpu_is_shipped_code(package):
    """Nothing is compiled behind the back of a user who had other works made for this CPU."""
    code = """
    from fastq.ops import works
    works.SHAPES = {"one": [[64, 64]]}
    works.WORKS = {"one": {"one": 'minmax(x)'}}
    fastq.warmup("one", native=True)
    """
    written = package.parent / "compiled"
    call(package, code, str(written))
    assert "MinMaxOperands" in written.read_text()
    code = """
    from fastq.engine.code import found_functions
    from fastq.engine.code.loading import in_use
    print(len(found_functions()), len(in_use))
    """
    kept = set((package.parent / "cache").rglob("*.code"))
    assert call(package, code, str(written)) == "2 1\nFalse\n"  # the kernel is shipped, the driver was made
    assert set((package.parent / "cache").rglob("*.code")) == kept


def test_code_for_this_very_cpu_is_wanted_until_an_upgrade(tmp_path, monkeypatch):
    class Library:
        def __getattr__(self, symbol):
            return ctypes.c_void_p(1)

    for module in (shipped, lookup):
        monkeypatch.setattr(module, "code_folder", lambda: tmp_path)
    monkeypatch.setattr(shipped, "_library", Library)
    monkeypatch.setattr(shipped.Recipe, "compile_or_load", lambda recipe: 2)
    monkeypatch.setattr(shipped, "_recipes", {})
    monkeypatch.setattr(shipped, "_known", [])
    address = shipped.shipped_or_compiled(import_nothing)
    assert address("a") == 1
    with shipped.use_native():
        assert [address("a"), address("b")] == [2, 2]
    address.cache_clear()  # as in another process
    assert [address("a"), address("b"), address("c")] == [2, 2, 1]
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(shipped.SOURCES, "checksum", "another")
    address.cache_clear()
    assert [address("a"), address("b")] == [1, 1]


def test_code_for_this_very_cpu_is_refused_without_a_folder(monkeypatch):
    monkeypatch.setattr(shipped, "code_folder", lambda: None)
    with pytest.raises(OSError, match=r"^there is no folder for machine code that only this user can write to"):
        fastq.warmup("int8", native=True)


@needs_level
@pytest.mark.slow("makes a library again")
def test_two_builds_give_the_same_bytes(built, tmp_path):
    build(tmp_path / LEVEL.name)
    for path in (built / "machine_code").iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@needs_level
def test_the_numbers_of_this_cpu_are_written_to_the_record(package):
    code = """
    import ctypes
    from fastq.engine.code import shipped
    from fastq.system import tuning
    record = (ctypes.c_int64 * len(tuning.READ_BY_KERNELS)).in_dll(shipped._library(), tuning.RECORD)
    assert list(record) == [getattr(tuning.current(), name) for name in tuning.READ_BY_KERNELS]
    """
    call(package, code)


# --- levels and rows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", f"{cpu._V3} {cpu._V4} gfni", ["x86-64-v4-gfni", "x86-64-v4", "x86-64-v3"]),
        ("x86_64", f"{cpu._V3} {cpu._V4} sse", ["x86-64-v4", "x86-64-v3"]),
        ("x86_64", f"{cpu._V3} avx512f", ["x86-64-v3"]),
        ("x86_64", "sse4_2 avx", []),
        ("aarch64", "", ["aarch64"]),
        ("riscv64", "", []),
    ],
)
def test_levels_of_a_cpu(monkeypatch, machine, flags, expected):
    monkeypatch.setattr(cpu, "MACHINE", machine)
    monkeypatch.setattr(cpu, "facts", lambda: {"flags": flags})
    assert [each.name for each in cpu.levels()] == expected


@pytest.mark.parametrize(
    ("vendor", "family", "model", "expected"),
    [
        ("AuthenticAMD", "26", "2", "znver5"),
        ("AuthenticAMD", "25", "17", "znver4"),
        ("AuthenticAMD", "25", "97", "znver4"),
        ("AuthenticAMD", "25", "1", "znver3"),
        ("GenuineIntel", "6", "167", "rocketlake"),
        ("GenuineIntel", "6", "143", "default"),
        ("", "", "", "default"),
    ],
)
def test_the_row_of_a_cpu(monkeypatch, vendor, family, model, expected):
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    monkeypatch.setattr(cpu, "facts", lambda: {"vendor_id": vendor, "cpu family": family, "model": model})
    tuning.cpu_name.cache_clear()
    try:
        assert tuning.cpu_name() == expected
    finally:
        tuning.cpu_name.cache_clear()


def test_the_name_of_this_cpu_is_llvms():
    from llvmlite import binding

    name = binding.get_host_cpu_name()
    assert tuning.cpu_name() == (name if name in tuning.TUNING else "default")


def test_numbers_that_the_runtime_is_compiled_with_are_those_of_all_cpus():
    names = {"series", "backoff", "backoff_repeat_within", "backoff_min_calls"}
    source = Path(workers.__file__).read_text()
    assert {field.name for field in dataclasses.fields(tuning.Tuning) if f"_ROW.{field.name}" in source} == names
    assert len({tuple(getattr(row, name) for name in sorted(names)) for row in tuning.TUNING.values()}) == 1


def test_kernels_read_no_number_of_one_cpu_while_they_are_compiled():
    for room in ("kernels", "engine/simd"):
        for path in (PACKAGE / room).rglob("*.py"):
            assert "tuning.current()" not in path.read_text(), path


# --- planned ahead ----------------------------------------------------------------------------------------------------


def test_what_is_planned_only_writes_nothing_and_is_right_afterwards():
    x, codes = np.ones((8, 64), np.float32), np.full((8, 64), 7, np.int8)
    with driver.planned_only():
        fastq.quantize(x, "int8", out=codes)
    assert (codes == 7).all()
    fastq.quantize(x, "int8", out=codes)
    assert (codes == 127).all()


def test_other_threads_launch_what_one_plans_only(in_a_thread):
    x = np.linspace(-1, 1, 512, dtype=np.float32)
    with driver.planned_only():
        fastq.quantize(x, "int8")
        q = in_a_thread(lambda: fastq.quantize(x, "int8"))
    assert q.codes.tobytes() == fastq.reference.quantize(x, "int8").codes.tobytes()


@pytest.fixture
def in_a_thread():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        yield lambda work: pool.submit(work).result()


def import_nothing():
    """What a recipe has to import what compiles."""
    raise AssertionError("a name needs no import")


def import_something():
    """Another one."""
    raise AssertionError("a name needs no import")


def test_recipes_are_named_by_all_that_they_are_made_of():
    same = [shipped.Recipe(import_nothing, (np.dtype("f4"), 1, import_nothing)).symbol for _ in range(2)]
    others = [
        (import_nothing, (np.dtype("f8"), 1, import_nothing)),
        (import_nothing, (np.dtype("f4"), 1, import_something)),
        (import_something, (np.dtype("f4"), 1, import_nothing)),
    ]
    assert same[0] == same[1] not in [shipped.Recipe(*each).symbol for each in others]
    with pytest.raises(AssertionError, match="may share a name"):
        shipped.Recipe(lambda: import_nothing, ()).symbol  # noqa: B018


# --- the build --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "expected"), [(None, False), ("", False), ("0", False), ("1", True), ("x", True)])
def test_the_build_has_a_switch(given, expected, monkeypatch):
    """0 and nothing are off; anything else is on, or no platform and no level that there is."""
    if given is None:
        monkeypatch.delenv("FASTQ_BUILD_KERNELS", raising=False)
    else:
        monkeypatch.setenv("FASTQ_BUILD_KERNELS", given)
    assert HATCH_BUILD["is_on"]() is expected


@pytest.mark.parametrize("given", ["x", "x86-64-v9", "windows-x86_64"])
def test_what_is_no_platform_and_no_level_is_refused(given, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTQ_BUILD_KERNELS", given)
    with pytest.raises(SystemExit, match=f"FASTQ_BUILD_KERNELS is {given}, but PLATFORMS has no such row"):
        HATCH_BUILD["build"](str(tmp_path))


# what an object file begins with, ELF or Mach-O, and where its number of the CPU is
HEADERS_OF_OBJECTS = {
    "linux-x86_64": (b"\x7fELF\2", 18, b"\x3e\0"),
    "linux-aarch64": (b"\x7fELF\2", 18, b"\xb7\0"),
    "macos-arm64": (b"\xcf\xfa\xed\xfe", 4, b"\x0c\0\0\1"),
}
COMPILE = """
import runpy
import sys
build = runpy.run_path("hatch_build.py", run_name="__mp_main__")
platform = next(row for row in build["PLATFORMS"] if row.name == sys.argv[1])
build["aim"](platform)
from fastq.engine.code import lookup, shipped
from fastq.ops import works
found = shipped.record()
works.SHAPES = {"one": [[64, 64]]}
works.WORKS = {"one": {"one": 'minmax(x)'}}
works.plan(["one"])
build["compile_part"](platform, sorted(found.items())[:1], sys.argv[2])
"""


@pytest.mark.slow("compiles for another CPU", quick=lambda name: name == next(iter(PLATFORMS)))
@pytest.mark.parametrize("name", PLATFORMS)
def test_functions_are_compiled_for_the_platform_of_the_wheel(name, tmp_path):
    level = next(each for each in cpu.LEVELS if each.machine == PLATFORMS[name].machine)
    told = {"NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.features, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMPILE, name, str(tmp_path)]
    subprocess.run(command, env=os.environ | told, check=True, cwd=ROOT, timeout=600)
    begins, at, machine = HEADERS_OF_OBJECTS[name]
    (made,) = (path.read_bytes() for path in tmp_path.iterdir())
    assert made.startswith(begins)
    assert made[at:].startswith(machine)
