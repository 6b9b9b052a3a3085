"""Names of modules: their ends, and the targets of compressed-tensors that they match."""

from __future__ import annotations

import re


def tail_of(module: str) -> str:
    """Return the end of a name that tells what a module does: what follows the last number, or the last two words.

    It is "mlp.up_proj" for "model.layers.3.mlp.up_proj", and "model.embed_tokens" without a number. A number at the end
    is not followed by anything, and does not count.
    """
    parts = module.split(".")
    numbers = [k for k, part in enumerate(parts[:-1]) if part.isdecimal()]
    return ".".join(parts[numbers[-1] + 1 :] if numbers else parts[-2:])


def matches_target(module: str, pattern: str) -> bool:
    """Return whether a target of compressed-tensors, a name or "re:" and a regular expression, matches a module.

    As there, an expression need not match beyond the start of the name.
    """
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return module == pattern
