"""Threads, forks, the end of the interpreter and settings, each in a process of its own."""

import importlib
import os

import pytest
from subprocesses import SETUP, run

LAYERS = ["omp", "workqueue", ""]  # "": whatever Numba chooses

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# somebody else's parallel function
USER = """
import numba

@numba.njit(parallel=True)
def user(x):
    total = 0.0
    for i in numba.prange(x.size):
        total += x[i]
    return total

ones = np.ones(1 << 16)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache for all processes here: compiling is most of the time."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def call(cache):
    def call(code, layer="", threads=4, **arguments):
        return run(code, NUMBA_CACHE_DIR=cache, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS=threads, **arguments)

    return call


def require(layer):
    if layer == "omp":
        try:
            importlib.import_module("numba.np.ufunc.omppool")
        except ImportError:
            pytest.skip("Numba cannot load libgomp here")


# Threads


@pytest.mark.parametrize("layer", LAYERS)
def test_eight_threads_at_once(call, layer):
    require(layer)
    code = """
    import numba
    from fastq.kernels.parallel import PARALLEL_FROM
    cases = [Case(size, size) for size in (1, 1000, PARALLEL_FROM - 1, PARALLEL_FROM, 5 * PARALLEL_FROM + 3)]
    sys.setswitchinterval(1e-5)

    def work():
        for _ in range(15):
            for case in cases:
                case.check()

    in_threads(8, work)
    try:
        print(numba.threading_layer())
    except ValueError:
        print("none")
    """
    used = call(code, layer).strip()
    assert used == {"omp": "omp", "workqueue": "none"}.get(layer, used)


@pytest.mark.parametrize("layer", LAYERS)
def test_beside_a_parallel_function_of_the_user(call, layer):
    require(layer)
    code = """
    user(ones)
    case, done = Case(1 << 17), threading.Event()
    runs = 0

    def others():
        global runs
        while not done.is_set():
            assert user(ones) == ones.size
            runs += 1

    other = threading.Thread(target=others)
    other.start()
    in_threads(4, lambda: [case.check() for _ in range(25)])
    done.set()
    other.join()
    assert runs > 10, runs
    """
    call(USER.join([SETUP, ""]) and code, layer, setup=SETUP + USER)


@pytest.mark.parametrize(
    "settings",
    [
        {"NUMBA_THREADING_LAYER": "tbb"},
        {"NUMBA_THREADING_LAYER": "safe"},
        {"NUMBA_THREADING_LAYER": "forksafe"},
        {"NUMBA_THREADING_LAYER_PRIORITY": "workqueue omp tbb"},
    ],
    ids=lambda settings: next(iter(settings.values())),
)
def test_layers_that_are_missing_or_lead_to_workqueue(cache, settings):
    code = """
    import numba
    case = Case(1 << 17)
    case.check()
    from fastq.kernels import parallel
    try:
        safe = numba.threading_layer() != "workqueue"
    except ValueError:
        safe = False
    assert (parallel._state.pool is None) == safe
    """
    run(code, NUMBA_CACHE_DIR=cache, NUMBA_NUM_THREADS=2, **settings)
