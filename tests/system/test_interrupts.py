"""Ctrl-C in the middle of imports and compilations, of calls, and at any moment of a command."""

import os
import signal
import sys
from textwrap import dedent

import pytest
from subprocesses import SETUP, finish, run, start

from fastq.system.signals import Held

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

# Shells ignore SIGINT for processes that they start in the background.
INTERRUPTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def until_it_returns(call, most):
    "What a call returns, which is repeated as long as it is interrupted, and how often that was."
    for count in range(most):
        try:
            return call(), count
        except KeyboardInterrupt:
            pass
    raise AssertionError(f"interrupted {most} times")
"""


# Signals that are held back


@pytest.fixture
def handled():
    """Which signals were handled by a handler that returns; one of SIGINT raises as usual."""
    seen, before = [], {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def kill(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_signals_are_handled_at_the_end_of_the_outermost_block(handled):
    steps, before = [], signal.getsignal(signal.SIGUSR1)

    def outer():
        with Held():
            inner()
            steps.append(f"outer {handled}")

    def inner():
        with Held():
            kill()
            kill(signal.SIGUSR1)
            steps.append("inner")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert steps == ["inner", "outer []"]
    assert handled == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGUSR1) is before


def test_all_handlers_are_called_where_one_raises(handled):
    def ends(number, frame):
        handled.append(number)
        raise SystemExit(number)

    def block():
        with Held():
            kill()
            kill(signal.SIGTERM)
            kill(signal.SIGUSR1)

    signal.signal(signal.SIGTERM, ends)
    with pytest.raises(KeyboardInterrupt):
        block()
    assert set(handled) == {signal.SIGTERM, signal.SIGUSR1}


def test_an_interrupt_comes_after_an_error_of_the_block(handled):
    def block():
        with Held():
            kill()
            raise ValueError("of the block")

    with pytest.raises(KeyboardInterrupt) as ended:
        block()
    assert str(ended.value.__context__) == "of the block"


def test_a_handler_that_the_block_sets_stays(handled):
    with Held():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with Held():
        kill()  # is ignored
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_that_the_block_keeps_handles_signals_afterwards(handled):
    with Held():
        kept = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        kept(signal.SIGINT, None)
    signal.signal(signal.SIGINT, kept)
    with pytest.raises(KeyboardInterrupt), Held():
        kill()
    assert signal.getsignal(signal.SIGINT) is kept


def test_other_threads_hold_nothing():
    code = """
    from fastq.system.signals import Held

    def work():
        with Held():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    in_threads(4, work)
    """
    run(code, setup=SETUP + INTERRUPTS)


EVERY_INSTRUCTION = """
import os, signal, sys
from fastq.system.signals import Held

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGUSR1, other := lambda number, frame: None)

def attempt(n):
    "Interrupt the n-th instruction of a block and of all that it calls; what ran of it, or None if it has no more."
    count, steps = 0, []

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == n:
                sys.settrace(None)  # the rest runs as ever
                os.kill(os.getpid(), signal.SIGINT)
        return trace

    def block():
        with Held():
            steps.append("begun")
            steps.append("ended")

    sys.settrace(trace)
    try:
        block()
        steps.append("not interrupted")
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return steps if count >= n else None

attempt(0)  # 3.12 traces no instruction before a frame has asked for that
n, found = 1, []
while (steps := attempt(n)) is not None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, n
    found.append(steps)
    n += 1
assert found.count([]) > 100 and found.count(["begun", "ended"]) > 100, n
assert {tuple(steps) for steps in found} == {(), ("begun", "ended")}
print(signal.getsignal(signal.SIGUSR1) is other)
"""


def test_every_instruction():
    """A block is run as a whole or not at all, and handlers are as before, wherever Ctrl-C comes."""
    assert run(EVERY_INSTRUCTION, setup="") == "True\n"


# Imports and compilations

CALL = """
x = np.random.default_rng(0).standard_normal(1000, np.float32)
result = np.array(x.min()), np.array(x.max())

def first_call():
    return fastq.minmax(x)

def is_right(found):
    return [each.tobytes() for each in found] == [each.tobytes() for each in result]

def attempted():
    "Call until no call is interrupted; how many were."
    found, count = until_it_returns(first_call, 2)
    assert is_right(found) and is_right(first_call())
    return count
"""

LLVM = """
from llvmlite.binding import ffi
whole, calls = ffi._lib_fn_wrapper.__call__, 0

def interrupted_in(matches):
    "Have LLVM's calls interrupted, after which Python has the first word, where their name and number match."
    def call(self, *arguments):
        global calls
        result = whole(self, *arguments)
        calls += 1
        if matches(self._cfn.__name__, calls):
            interrupt()
        return result

    ffi._lib_fn_wrapper.__call__ = call
"""

# which the call imports first
IMPORTS = """
class Press:
    count, wanted = 0, ()

    def find_spec(self, name, path=None, target=None):
        self.count += 1
        if self.wanted is None or self.count in self.wanted:
            interrupt()

press = Press()
sys.meta_path.insert(0, press)
"""
NEEDED = SETUP + INTERRUPTS + CALL


def test_every_call_of_llvm(tmp_path):
    code = """
    fastq.get_num_threads()  # imports Numba
    interrupted_in(lambda name, count: True)
    found, count = until_it_returns(first_call, 10)
    ffi._lib_fn_wrapper.__call__ = whole
    assert is_right(found) and is_right(first_call())
    print(count, calls)
    """
    count, calls = map(int, run(code, setup=NEEDED + LLVM, NUMBA_CACHE_DIR=tmp_path).split())
    assert count in (2, 3)  # a kernel and the driver, and what is imported
    assert calls > 100


def test_every_import():
    code = """
    press.wanted = None
    found, count = until_it_returns(first_call, 10)
    assert is_right(found)
    press.wanted = ()
    assert is_right(first_call())
    print(count, press.count)
    """
    # a setting, so that Numba is asked for code that is on disk
    count, imports = map(int, run(code, setup=NEEDED + IMPORTS, NUMBA_OPT=3).split())
    assert 1 <= count <= 5
    assert imports > 300


EACH = """
for place in {places}:
    code = os.waitstatus_to_exitcode(os.waitpid(forked(lambda: attempted(place)), 0)[1])
    if code:
        print(place, code)
"""


@pytest.mark.slow("compiles in a process for each call", quick=lambda places: len(range(*places)) == 1)
@pytest.mark.parametrize("places", [(42, 43), (1, 430, 3)])
def test_each_call_of_llvm(places, tmp_path):
    """A call may take or free a module, of which Python learns one instruction later."""
    code = """
    import shutil, tempfile
    from numba.core import config
    fastq.get_num_threads()

    def attempted(place, attempted=attempted):
        config.CACHE_DIR = tempfile.mkdtemp()
        interrupted_in(lambda name, count: count == place)
        count = attempted()
        shutil.rmtree(config.CACHE_DIR)
        assert count == (place <= calls)
    """
    setup = NEEDED + LLVM + dedent(code)
    process = start(EACH.format(places=f"range(*{places})"), setup=setup, NUMBA_CACHE_DIR=tmp_path)
    assert finish(process, timeout=3600) == ""


@pytest.mark.slow("a process for each import")
@pytest.mark.parametrize("places", [(4, 400, 72), (1, 400)])
def test_each_import(places):
    code = """
    def attempted(place, attempted=attempted):
        press.wanted = place,
        assert attempted() == (place <= press.count)
    """
    setup = NEEDED + IMPORTS + dedent(code)
    process = start(EACH.format(places=f"range(*{places})"), setup=setup, NUMBA_OPT=3)
    assert finish(process, timeout=3600) == ""


# What calls change


def test_workers_are_started_as_a_whole():
    code = """
    from fastq.engine.runtime import shared_records, threadpool
    start = threading.Thread.start

    def start_and_interrupt(self):
        start(self)
        interrupt()

    threading.Thread.start = start_and_interrupt
    case = Case(1 << 18)
    _, count = until_it_returns(case.check, 10)
    words = threadpool._state.words
    assert words.slots == 4 and words.starting.acquire(blocking=False)
    print(count)
    """
    assert run(code, setup=SETUP + INTERRUPTS, NUMBA_NUM_THREADS=4) == "1\n"


def test_calls_have_help_again_after_an_interrupt_of_one_without():
    code = """
    from fastq.engine.runtime import shared_records, threadpool
    add = threadpool._add_to_alone_compiled()
    changes = []

    def added(address, change):
        add(address, change)
        changes.append(change)
        if change > 0:
            interrupt()

    threadpool._add_to_alone_compiled = lambda: added
    _, count = until_it_returns(lambda: changes or threadpool.call_alone(interrupt), 2)
    print(count, changes, threadpool._state.words.words[shared_records.ALONE])
    """
    assert run(code, setup=SETUP + INTERRUPTS) == "1 [1, -1] 0\n"


def test_the_mode_of_floats_is_that_of_before():
    code = """
    from fastq.engine.runtime import boundary
    exchange, modes = boundary._exchange(), []

    def exchanged(mode):
        before = exchange(mode)
        modes.append(mode)
        if len(modes) == 1:
            interrupt()
        return before

    boundary._exchange, boundary._is_standard = lambda: exchanged, lambda: False
    own = exchange(boundary.STANDARD)
    exchange(own)
    _, count = until_it_returns(lambda: modes or boundary.in_standard_mode(interrupt)(), 2)
    print(count, modes == [boundary.STANDARD, own])
    """
    assert run(code, setup=SETUP + INTERRUPTS) == "1 True\n"


def test_an_interrupted_fork_keeps_no_lock():
    code = """
    from fastq.system import forks

    class Lock:
        def __init__(self):
            self.lock = threading.RLock()

        def acquire(self):
            self.lock.acquire()
            interrupt()

        def release(self):
            self.lock.release()

        def __enter__(self):
            self.acquire()

        def __exit__(self, *error):
            self.release()

    def free():
        assert lock.lock.acquire(timeout=20) and forks.importing.acquire(timeout=20)

    lock, dropped = Lock(), []
    sys.unraisablehook = lambda what: dropped.append(what.exc_type)
    forks.hold_at_fork(lock, lambda: False)
    join(forked(lambda: None))
    in_threads(1, free)
    print(dropped == [KeyboardInterrupt])
    """
    assert run(code, setup=SETUP + INTERRUPTS) == "True\n"
