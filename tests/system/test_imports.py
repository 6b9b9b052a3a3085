"""What is done when it is first needed; forks meanwhile are in test_processes.py."""

import contextlib
import functools
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import fastq
from fastq.system import forks
from fastq.system.attributes import cached_property


def make(property_of):
    """Make a class whose `value` is computed until `go` is set, and says by `begun` that it is."""

    class Thing(SimpleNamespace):
        @property_of
        def value(self):
            self.begun.set()
            assert self.go.wait(20)
            return [0]

    return Thing


def blocks(property_of, patience):
    """Whether a property that one thread computes keeps another thread from one of another object, or of none."""
    kind = make(property_of)
    slow, fast = (kind(begun=threading.Event(), go=threading.Event()) for _ in range(2))
    fast.go.set()
    threads = [threading.Thread(target=lambda thing=thing: thing.value) for thing in (slow, fast)]
    threads[0].start()
    assert slow.begun.wait(20)
    threads[1].start()
    threads[1].join(patience)
    blocked = threads[1].is_alive()
    slow.go.set()
    for thread in threads:
        thread.join()
    return blocked


def test_cached_property_holds_no_lock():
    class Locked(functools.cached_property):
        lock = threading.RLock()

        def __get__(self, instance, owner=None):
            with self.lock:
                return self.func(instance)

    assert not blocks(cached_property, 20)
    assert blocks(Locked, 0.2)


def test_cached_property_is_computed_once():
    thing = make(cached_property)(begun=threading.Event(), go=threading.Event())
    thing.go.set()
    assert thing.value is thing.value
    assert isinstance(type(thing).value, functools.cached_property)  # by which documentation knows it


def test_no_other_property_takes_a_lock():
    sources = {path.name: path.read_text() for path in Path(fastq.__file__).parent.rglob("*.py")}
    locked = re.compile(r"functools\.cached_property|from functools import (\([^)]*|.*)\bcached_property")
    assert [name for name, text in sources.items() if locked.search(text)] == ["attributes.py"]


def test_a_fork_takes_the_locks_of_a_module_whose_import_it_waited_for(monkeypatch):
    """A child would wait for ever for a lock that another thread held."""
    lock, locks = threading.Lock(), []

    @contextlib.contextmanager
    def importing():
        locks.append(lock)
        yield

    locks.append(importing())
    monkeypatch.setattr(forks, "_locks", locks)
    forks._before_fork()
    try:
        assert lock.locked()
    finally:
        forks._after_fork()
    assert not lock.locked()
