"""Machine code on disk that is found without Numba: it is the right code, and Numba is asked where that is not sure."""

import shutil
from textwrap import dedent
from threading import Thread
from types import SimpleNamespace

import pytest
from edited import copy_of_package, edit
from llvmlite import binding
from subprocesses import run

from fastq.engine.code import lookup, settings
from fastq.system import forks

CODE = """
codes = fastq.quantize_linear(np.full(9, 0.75, np.float32), 1.0, 0, "int8")
print(*set(codes.tolist()), "numba" in sys.modules)
"""
FOUND, ASKED = "1 False\n", "1 True\n"


def call(cache, before="", after="", **arguments):
    """A call in a process of its own: what it gave, and whether Numba was imported."""
    setup = f"import os, sys\n{dedent(before)}\nimport numpy as np\nimport fastq\n"
    return run(dedent(CODE) + dedent(after), setup=setup, NUMBA_CACHE_DIR=cache, **arguments)


def content(cache):
    """The files of machine code, and those that lead to them, by their names."""
    return {path.name: path.read_bytes() for path in cache.rglob("*.code") if not path.name.startswith("sources.")}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    assert call(cache) == ASKED
    return cache


@pytest.fixture
def cache(filled, tmp_path):
    """A copy of a filled cache."""
    return shutil.copytree(filled, tmp_path / "cache")


def leading(cache):
    """The files that lead to machine code."""
    return sorted(cache.rglob("fastq_*.code"))


def test_a_second_process_needs_no_numba(filled):
    before = content(filled)
    assert call(filled) == FOUND
    assert content(filled) == before
    assert len(leading(filled)) == 2  # of the kernel and the driver


def test_all_of_it_is_code_that_can_be_listed(filled):
    """As that of a library it is compiled again for it."""
    after = """
    from fastq.engine import jit
    from fastq.engine.code import found_functions
    print(jit.functions_in_memory(), sorted(jit.listing(address).name for address in found_functions()))
    """
    assert call(filled, after=after) == FOUND + "2 ['drive.drive', 'runs.runs']\n"


OTHERS = {
    "other code has imported numba": "import numba",
    "other code has changed a setting": "import numba\nnumba.config.SLP_VECTORIZE = 1",
    "another CPU": "from llvmlite import binding\nbinding.get_host_cpu_name = lambda: 'x86-64'",
    "no version": "from fastq.engine.code import settings\nsettings.PathFinder = type('', (), {'find_spec': {}.get})",
}


@pytest.mark.slow("may compile")
@pytest.mark.parametrize("case", OTHERS)
def test_numba_is_asked_where_it_may_know_better(cache, case):
    before = leading(cache)
    assert call(cache, OTHERS[case]) == ASKED
    assert leading(cache) == before
    if case == "another CPU":  # of the same flags: its files take the place of this one's
        assert call(cache) == ASKED
    assert call(cache) == FOUND


@pytest.mark.slow("compiles")
@pytest.mark.parametrize("where", ["environment", "file"])
def test_settings_of_numba_are_heard(cache, where, tmp_path):
    (tmp_path / ".numba_config.yaml").write_text("slp_vectorize: 1\n")
    given = {"NUMBA_SLP_VECTORIZE": 1} if where == "environment" else {"before": f"os.chdir({str(tmp_path)!r})"}
    before = leading(cache)
    assert call(cache, **given, options=("-W", "ignore")) == ASKED  # without PyYAML Numba warns of the file
    assert leading(cache) == before
    assert call(cache) == FOUND


@pytest.mark.slow("compiles")
def test_a_setting_that_changes_later_is_heard(cache):
    after = "import numba\nnumba.config.SLP_VECTORIZE = 1\nprint(fastq.minmax(np.ones(9, np.float32))[0])"
    before = leading(cache)
    assert call(cache, after=after) == FOUND + "1.0\n"
    assert leading(cache) == before


@pytest.mark.slow("compiles")
def test_a_setting_that_changes_after_a_compilation_is_heard(tmp_path):
    after = "import numba\nnumba.config.SLP_VECTORIZE = 1\nprint(fastq.minmax(np.ones(9, np.float32))[0])"
    assert call(tmp_path, after=after) == ASKED + "1.0\n"
    assert len(leading(tmp_path)) == 2


@pytest.mark.slow("compiles three times")
def test_edits_of_sources(tmp_path):
    package, cache = copy_of_package(tmp_path) / "fastq", tmp_path / "cache"
    formulas, others = package / "kernels" / "formulas.py", package / "kernels" / "ggml" / "blocks32.py"

    def result():
        return call(cache, package=package)

    assert [result(), result()] == [ASKED, FOUND]
    edit(formulas, '"rint" if', '"floor" if')
    assert [result(), result()] == ["0 True\n", "0 False\n"]
    edit(formulas, '"floor" if', '"rint" if')
    assert result() == FOUND
    edit(others, '"""', '"""Or else: ')
    kept = content(cache).keys()
    assert [result(), result()] == [ASKED, FOUND]
    assert all(name.startswith("fastq_") for name in content(cache).keys() - kept)  # nothing was compiled again


@pytest.mark.slow("compiles twice")
def test_an_edit_while_a_process_runs(tmp_path):
    package, cache = copy_of_package(tmp_path) / "fastq", tmp_path / "cache"
    assert call(cache, package=package) == ASKED
    before = content(cache)
    code = f"""
    import fastq.engine.code
    with open({str(package / "kernels" / "rule.py")!r}, "a") as source:
        source.write("_ = 0\\n")
    """
    assert call(cache, code, package=package) == ASKED
    assert {name: content(cache)[name] for name in before} == before
    assert {name.partition(".")[0] for name in content(cache).keys() - before.keys()} <= {"drive"}


def flip(path):
    found = bytearray(path.read_bytes())
    found[len(found) * 3 // 4] ^= 0x10
    path.write_bytes(found)


DAMAGES = {"empty": lambda path: path.write_bytes(b""), "gone": lambda path: path.unlink(), "a bit": flip}
DAMAGES["another's"] = lambda path: path.chmod(0o666)


@pytest.mark.slow("may compile")
@pytest.mark.parametrize("which", ["the leading files", "what they lead to"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_mended(cache, damage, which):
    before = content(cache)
    files = leading(cache)
    for path in files if which == "the leading files" else set(cache.rglob("*.code")) - set(files):
        DAMAGES[damage](path)
    assert [call(cache), call(cache)] == [ASKED, FOUND]
    assert content(cache) == before


@pytest.mark.slow("starts a process")
def test_threads_that_start_together(filled):
    before = """
    import threading
    from concurrent.futures import ThreadPoolExecutor
    import numpy as np, fastq
    ready = threading.Barrier(8)
    def work(_):
        ready.wait()
        return fastq.quantize_linear(np.full(9, 0.75, np.float32), 1.0, 0, "int8").tolist()
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [[1] * 9] * 8
    """
    assert call(filled, before) == FOUND


THEIRS = """
def add(n):
    return n + {number}

def address():
    from numba import int64
    from fastq.engine import jit
    return jit.kernel(add, int64, int64)
"""


@pytest.mark.slow("compiles a function twice")
def test_numba_is_asked_for_functions_of_other_packages(tmp_path):
    """Their sources are in no checksum."""
    code = f"""
    import ctypes, sys
    sys.path.insert(0, {str(tmp_path)!r})
    from fastq.engine.code.shipped import shipped_or_compiled
    def import_address():
        import theirs
        return theirs.address
    print(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(shipped_or_compiled(import_address)())(40))
    """
    for number in (1, 1, 2):
        (tmp_path / "theirs.py").write_text(THEIRS.format(number=number))
        added = run(code, setup="", NUMBA_CACHE_DIR=tmp_path / "cache", PYTHONDONTWRITEBYTECODE=1)
        assert added == f"{40 + number}\n"
    assert not leading(tmp_path)


def test_a_folder_that_may_not_be_asked_about_is_no_error(filled):
    before = """
    def stat(path, *arguments, stat=os.stat, **options):
        if "fastq_" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, *arguments, **options)

    os.stat = stat
    """
    assert call(filled, before) == FOUND


def test_forks_wait_while_llvm_is_asked(monkeypatch):
    """The child of a fork within that would wait for LLVM's lock for ever."""
    taken = []

    def name():
        thread = Thread(target=lambda: taken.append(forks.importing.acquire(blocking=False)))
        thread.start()
        thread.join()
        return "a CPU"

    monkeypatch.setattr(binding, "get_host_cpu_name", name)
    assert settings.machine_digest.__wrapped__() != b""
    assert taken == [False]


def test_nothing_is_found_without_a_folder(monkeypatch):
    monkeypatch.setattr(lookup, "code_folder", lambda: None)
    assert lookup.leading_file("symbol") is None


def test_the_version_of_a_tree_of_sources_is_not_known(monkeypatch, tmp_path):
    machine = settings.machine_digest.__wrapped__
    assert machine() == machine() != b""
    spec = SimpleNamespace(origin=str(tmp_path / "numba" / "__init__.py"))
    monkeypatch.setattr(settings, "PathFinder", SimpleNamespace(find_spec=lambda name: spec))
    assert machine() == b""
    (tmp_path / "numba-0.68.0.dist-info").mkdir()
    installed = machine()
    (tmp_path / "numba-0.68.0.dist-info").rename(tmp_path / "numba-0.68.1.dist-info")
    assert b"" != installed != machine() != b""
