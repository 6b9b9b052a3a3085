"""Patterns of names, the same in all commands, and what is said of one that is for nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

NEAREST = 3  # names that a message shows
WEIGHT = ".weight"


def check_pattern(pattern: str) -> None:
    """Raise `re.error` if what follows "re:" is no regular expression."""
    if pattern.startswith("re:"):
        re.compile(pattern.removeprefix("re:"))


def check_searched(pattern: str) -> None:
    """Raise `re.error` if nothing can be searched for by a pattern: see `is_found`."""
    if not {"*", "?"} & set(pattern):  # else it may be a shell pattern
        re.compile(pattern.removeprefix("re:"))
    check_pattern(pattern)


def fits(tensor: str, pattern: str) -> bool:
    """Whether a pattern is for a tensor, or for the module that has it as its weight.

    It is a whole name, a shell pattern of one, or after "re:" a regular expression for the beginning of one.
    """
    names = tensor, tensor.removesuffix(WEIGHT)
    if pattern.startswith("re:"):
        return any(re.match(pattern.removeprefix("re:"), name) for name in names)
    return pattern in names or any(fnmatchcase(name, pattern) for name in names)


def is_for(module: str, pattern: str) -> bool:
    """Whether a pattern is for a module, by its name or that of its weight."""
    return fits(f"{module}{WEIGHT}", pattern)


def is_found(tensor: str, pattern: str) -> bool:
    """Whether a pattern is for a tensor, or as llama-quantize has it a regex that is found in its name."""
    try:
        return fits(tensor, pattern) or re.search(pattern, tensor) is not None
    except re.error:
        return False


def check_patterns(
    option: str, patterns: Iterable[str], names: Iterable[str], what: str, fit: Callable[[str, str], bool] = fits
) -> None:
    """Raise ValueError with the nearest names if a pattern is for none."""
    names = list(names)
    idle = next((each for each in patterns if not any(fit(name, each) for name in names)), None)
    if idle is not None:
        raise ValueError(f"no {what} has a name that fits {idle!r}{advice(option, idle, names, fit)}")


def advice(option: str, pattern: str, names: Iterable[str], fit: Callable[[str, str], bool] = fits) -> str:
    """Return what was probably meant by a pattern: the spelling that is for names, else the nearest names."""
    text, names = pattern.removeprefix("re:"), list(dict.fromkeys(names))
    plain = text.strip("*")
    for spelled in (f"*{plain}*", f"re:.*{text}", f"re:(?i).*{re.escape(plain)}", f"re:(?i).*{text}"):
        try:
            found = [name for name in names if plain and fit(name, spelled)]
        except re.error:
            continue
        if found:
            return f"; {option} '{spelled}' is for {len(found)} of them: {_first(found)}"
    return nearest(plain, names)


def nearest(text: str, names: Iterable[str]) -> str:
    """Return, for an error, the names that have a text in them, or that are like it as a whole or by their ends."""
    names = list(names)
    found = [name for name in names if text and text in name]
    if not found:
        by_part: dict[str, str] = {}
        for name in names:
            module = name.removesuffix(WEIGHT)
            for part in (name, module, module.rpartition(".")[2], ".".join(module.split(".")[-2:])):
                by_part.setdefault(part, name)
        near = difflib.get_close_matches(re.sub(r"[*?\[\]]", "", text).strip("."), by_part, NEAREST, 0.5)
        found = list(dict.fromkeys(by_part[part] for part in near))
    return f"; the nearest are {_first(found)}" if found else ""


def _first(names: list[str]) -> str:
    return ", ".join(names[:NEAREST]) + ", ..." * (len(names) > NEAREST)
