"""Patterns of names, the same in all commands, and the errors for patterns that match nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

NEAREST = 3  # most names that a message shows
WEIGHT = ".weight"


def check_pattern(pattern: str) -> None:
    """Raise `re.error` if the text after "re:" is not a regular expression."""
    if pattern.startswith("re:"):
        re.compile(pattern.removeprefix("re:"))


def check_searched(pattern: str) -> None:
    """Raise `re.error` if a pattern can't be searched for: see `is_found`."""
    if not {"*", "?"} & set(pattern):  # else it may be a shell pattern
        re.compile(pattern.removeprefix("re:"))
    check_pattern(pattern)


def fits(tensor: str, pattern: str) -> bool:
    """Return whether a pattern matches a tensor, or the module of which it is the weight.

    A pattern is a whole name, a shell pattern, or after "re:" a regular expression for the start of a name.
    """
    names = tensor, tensor.removesuffix(WEIGHT)
    if pattern.startswith("re:"):
        return any(re.match(pattern.removeprefix("re:"), name) for name in names)
    return pattern in names or any(fnmatchcase(name, pattern) for name in names)


def is_for(module: str, pattern: str) -> bool:
    """Return whether a pattern matches a module, by its name or that of its weight."""
    return fits(f"{module}{WEIGHT}", pattern)


def is_found(tensor: str, pattern: str) -> bool:
    """Return whether a pattern matches a tensor; as in llama-quantize, also if it is a regex found within the name."""
    try:
        return fits(tensor, pattern) or re.search(pattern, tensor) is not None
    except re.error:
        return False


def check_patterns(
    option: str, patterns: Iterable[str], names: Iterable[str], noun: str, fit: Callable[[str, str], bool] = fits
) -> None:
    """Raise ValueError with the nearest names if a pattern matches no name; `noun` is what the names are of."""
    names = list(names)
    for pattern in patterns:
        if not any(fit(name, pattern) for name in names):
            raise ValueError(f"no {noun} has a name that matches {pattern!r}{advice(option, pattern, names, fit)}")


def advice(option: str, pattern: str, names: Iterable[str], fit: Callable[[str, str], bool] = fits) -> str:
    """Return a hint for a pattern that matches nothing: a spelling that does match, else the nearest names."""
    text = pattern.removeprefix("re:")
    names = list(dict.fromkeys(names))
    plain = text.strip("*")
    for spelled in (f"*{plain}*", f"re:.*{text}", f"re:(?i).*{re.escape(plain)}", f"re:(?i).*{text}"):
        try:
            matching = [name for name in names if plain and fit(name, spelled)]
        except re.error:
            continue
        if matching:
            return f"; {option} '{spelled}' matches {len(matching)} of them: {_first_names(matching)}"
    return nearest(plain, names)


def nearest(text: str, names: Iterable[str]) -> str:
    """Return the end of an error: names that contain a text, or else that resemble it as a whole or by their ends."""
    names = list(names)
    similar = [name for name in names if text and text in name]
    if not similar:
        name_with: dict[str, str] = {}  # by the name, its module, and the last words of the module
        for name in names:
            module = name.removesuffix(WEIGHT)
            for end in (name, module, module.rpartition(".")[2], ".".join(module.split(".")[-2:])):
                name_with.setdefault(end, name)
        ends = difflib.get_close_matches(re.sub(r"[*?\[\]]", "", text).strip("."), name_with, NEAREST, 0.5)
        similar = list(dict.fromkeys(name_with[end] for end in ends))
    return f"; the nearest are {_first_names(similar)}" if similar else ""


def _first_names(names: list[str]) -> str:
    """Return the first of some names, and dots if there are more."""
    return ", ".join(names[:NEAREST]) + ", ..." * (len(names) > NEAREST)
