"""Names of modules: their ends, and the targets of compressed-tensors that they match."""

from __future__ import annotations

import re


def tail_of(module: str) -> str:
    """Return the end of a name that tells the kind of module: the parts after the last number, or the last two."""
    parts = module.split(".")
    numbers = [k for k, part in enumerate(parts[:-1]) if part.isdecimal()]
    return ".".join(parts[numbers[-1] + 1 :] if numbers else parts[-2:])


def matches(module: str, pattern: str) -> bool:
    """Whether a target of compressed-tensors is for a module: its name, or a regular expression after "re:"."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return module == pattern
