"""Python imports this where its folder is in PYTHONPATH: what is found on disk or compiled is written down, or refused.

FASTQ_COMPILED is a file to which a line is added for each function that did not come with the package; "-" refuses it.
"""

import importlib.abc
import importlib.util
import os
import sys

MODULE, WRITTEN = "fastq.engine.code.shipped", os.environ.get("FASTQ_COMPILED")


class Watched(importlib.abc.MetaPathFinder):
    """Finds the module that looks for machine code, and has it tell what it does not find."""

    def find_spec(self, name, path=None, target=None):
        """Return the module's own spec, whose loader is followed by the change."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            right = module.load_or_compile

            def load_or_compile(leading, compiled, is_native):
                recipe = compiled.__self__
                if WRITTEN == "-":
                    raise AssertionError(f"this came not with the package: {tuple(recipe)}")
                with open(WRITTEN, "a") as file:
                    print(recipe.symbol, tuple(recipe), file=file)
                return right(leading, compiled, is_native)

            module.load_or_compile = load_or_compile

        spec.loader.exec_module = exec_module
        return spec


if WRITTEN:
    sys.meta_path.insert(0, Watched())
