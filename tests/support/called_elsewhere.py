"""Functions that are called in another process, as one of an emulated CPU: what does not depend on the CPU stays here.

FASTQ_CALLED_IN is a command of Python, which runs this module. Arrays of arguments are laid out there as they are here:
they share memory, have its alignment, and keep strides and flags. What is written is written here too, and a result
that is an argument is that argument.
"""

import functools
import importlib
import io
import os
import pickle
import shlex
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

VARIABLE = "FASTQ_CALLED_IN"
PATHS = os.pathsep.join(str(Path(__file__).parents[2] / name) for name in ("", "tests/support", "tests/campaigns"))
ALIGNMENT = 64
_SIZE = struct.Struct("<q")


def function(module, name):
    """Return a function of a module, or what calls it in the other process if there is one."""
    if VARIABLE in os.environ:
        return functools.partial(other().call, module, name)
    return getattr(importlib.import_module(module), name)


def api(module):
    """Return a module, or what has its functions called in the other process if there is one."""
    return _Api(module) if VARIABLE in os.environ else importlib.import_module(module)


class _Api:
    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return function(self._module, name)


# --- arrays -----------------------------------------------------------------------------------------------------------


def _root(array):
    """Return the array that owns the memory of another."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _bytes(root):
    """Return all bytes of an array that owns its memory, as they lie there."""
    return root.reshape(-1, order="A").view(np.uint8)


class Arrays:
    """Arrays by number, and the memories that they lie in."""

    def __init__(self):
        self.arrays, self.roots, self.numbers = [], {}, {}

    def number(self, value):
        """Return the number of an array, a new one for the first time; None for anything else."""
        if type(value) is not np.ndarray or value.dtype.hasobject:
            return None
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.arrays)
            self.arrays.append(value)
            root = _root(value)
            self.roots.setdefault(id(root), root)
        return self.numbers[id(value)]

    def described(self):
        """Return what another process needs to lay them out: memories, and for each array where in which it lies."""
        places = {key: k for k, key in enumerate(self.roots)}
        memories = [(root.ctypes.data % ALIGNMENT, _bytes(root).tobytes()) for root in self.roots.values()]
        rows = []
        for array in self.arrays:
            root = _root(array)
            offset = array.ctypes.data - root.ctypes.data if array.size else 0
            row = places[id(root)], offset, array.dtype, array.shape, array.strides, array.flags.writeable
            rows.append(row)
        return memories, rows


def laid_out(memories, rows):
    """Return memories, and arrays in them, as `Arrays.described` has it."""
    made = []
    for at, content in memories:
        room = np.empty(len(content) + ALIGNMENT, np.uint8)
        start = (at - room.ctypes.data) % ALIGNMENT
        memory = room[start : start + len(content)]
        memory[:] = np.frombuffer(content, np.uint8)
        made.append(memory)
    arrays = []
    for k, offset, dtype, shape, strides, writeable in rows:
        array = np.ndarray(shape, dtype, made[k].data if made[k].size else None, offset, strides)
        array.flags.writeable = writeable
        arrays.append(array)
    return made, arrays


class _Pickler(pickle.Pickler):
    def __init__(self, file, number):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.persistent_id = number


class _Unpickler(pickle.Unpickler):
    def __init__(self, content, arrays):
        super().__init__(io.BytesIO(content))
        self.persistent_load = arrays.__getitem__


def _pickled(value, number):
    out = io.BytesIO()
    _Pickler(out, number).dump(value)
    return out.getvalue()


# --- messages ---------------------------------------------------------------------------------------------------------


def _send(file, *parts):
    content = pickle.dumps(parts, pickle.HIGHEST_PROTOCOL)
    file.write(_SIZE.pack(len(content)) + content)
    file.flush()


def _receive(file):
    head = file.read(_SIZE.size)
    return pickle.loads(file.read(*_SIZE.unpack(head))) if head else None


class _Other:
    """The other process, started when it is first needed and again when it has ended."""

    process = None

    def call(self, module, name, *args, **options):
        """Call a function there; what it raises is raised here.

        Raises
        ------
        RuntimeError
            If the process has ended.
        """
        if self.process is None:
            self.process = subprocess.Popen(
                [*shlex.split(os.environ[VARIABLE]), "-m", "called_elsewhere"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={key: value for key, value in os.environ.items() if key != VARIABLE} | {"PYTHONPATH": PATHS},
            )
        given = Arrays()
        asked = _pickled((module, name, args, options), given.number)
        _send(self.process.stdin, *given.described(), asked)
        answer = _receive(self.process.stdout)
        if answer is None:
            raise RuntimeError(f"the other process ended with code {self.close()}")
        memories, raised, content = answer
        for root, memory in zip(given.roots.values(), memories, strict=True):
            if root.flags.writeable:
                _bytes(root)[:] = np.frombuffer(memory, np.uint8)
        result = _Unpickler(content, given.arrays).load()
        if raised:
            raise result
        return result

    def close(self):
        """Let the process end; return its exit code, or None without one."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.communicate()
        return process.returncode


@functools.cache
def other():
    """Return the other process."""
    return _Other()


def _called(module, name, args, options):
    """Return whether a call raises, and what it returns or raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return False, getattr(importlib.import_module(module), name)(*args, **options)
        except Exception as error:
            return True, error.with_traceback(None)


def main():
    """Answer until the pipe is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (message := _receive(sys.stdin.buffer)) is not None:
        memories, rows, asked = message
        made, arrays = laid_out(memories, rows)
        known = {id(array): k for k, array in enumerate(arrays)}
        raised, result = _called(*_Unpickler(asked, arrays).load())
        content = _pickled(result, lambda value, known=known: known.get(id(value)))
        _send(answers, [memory.tobytes() for memory in made], raised, content)


if __name__ == "__main__":
    main()
