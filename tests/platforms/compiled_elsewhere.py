"""In a process of an emulated CPU: machine code is asked for in a folder, where a process of this machine makes it.

To compile a kernel under emulation takes a minute, and gives the same bytes. A file of the environment's
`site-packages` imports this module when Python starts; the folder is that of FASTQ_COMPILED_IN.
"""

import contextlib
import importlib
import importlib.abc
import importlib.util
import io
import itertools
import operator
import os
import sys
import time
import types

FOLDER = os.environ.get("FASTQ_COMPILED_IN")
COMPILER = "fastq.engine.jit.compile"
REQUEST, ANSWER, ERROR = ".request", ".answer", b"error\n"


def pickled(value):
    """Return a function of a kernel and its types, each function of a module by its name."""
    from numba import cloudpickle

    from fastq.engine.jit.functions import TracedFunction

    class Pickler(cloudpickle.CloudPickler):
        def reducer_override(self, each):
            if isinstance(each, (TracedFunction, types.FunctionType)) and each is not named:
                for path in ((), ("function",)):
                    with contextlib.suppress(AttributeError, ImportError):
                        if named(each.__module__, each.__qualname__, *path) is each:
                            return named, (each.__module__, each.__qualname__, *path)
            return super().reducer_override(each)

    out = io.BytesIO()
    Pickler(out).dump(value)
    return out.getvalue()


def named(module, *names):
    """Return what has these names, one within the other, in a module."""
    return operator.attrgetter(".".join(names))(importlib.import_module(module))


_numbers = itertools.count()


class Asked:
    """What stands for a compiled library: its machine code is made by the other process."""

    def __init__(self, function, result, arguments):
        self.asked = pickled((function, result, arguments))

    def machine_code(self):
        """Ask, and wait for the answer.

        Raises
        ------
        RuntimeError
            If the other process has failed to compile, or has ended.
        """
        place = os.path.join(FOLDER, f"{os.getpid()}-{next(_numbers)}")
        with open(place, "wb") as file:
            file.write(self.asked)
        os.rename(place, place + REQUEST)
        while not os.path.exists(place + ANSWER):
            if not os.path.exists(FOLDER):
                raise RuntimeError(f"{FOLDER} is no more: who compiled there has ended")
            time.sleep(0.01)
        with open(place + ANSWER, "rb") as file:
            code = file.read()
        os.unlink(place + ANSWER)
        if code.startswith(ERROR):
            raise RuntimeError(code.decode())
        return code


class Patched(importlib.abc.MetaPathFinder):
    """Finds the module that compiles, and gives it another compiler."""

    def find_spec(self, name, path=None, target=None):
        """Return the module's own spec, whose loader is followed by the exchange."""
        if name != COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.compile_library = Asked

        spec.loader.exec_module = exec_module
        return spec


if FOLDER:
    sys.meta_path.insert(0, Patched())
