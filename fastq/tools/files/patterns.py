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
    """Raise `re.error` if a pattern is neither a shell pattern nor a regular expression: see `matches_as_llama`."""
    if not {"*", "?"} & set(pattern):  # else it may be a shell pattern
        re.compile(pattern.removeprefix("re:"))
    check_pattern(pattern)


def matches_tensor(tensor: str, pattern: str) -> bool:
    """Return whether a pattern matches a tensor, or the module of which it is the weight.

    A pattern is a whole name, a shell pattern, or after "re:" a regular expression for the start of a name.
    """
    names = tensor, tensor.removesuffix(WEIGHT)
    if pattern.startswith("re:"):
        return any(re.match(pattern.removeprefix("re:"), name) for name in names)
    return pattern in names or any(fnmatchcase(name, pattern) for name in names)


def matches_module(module: str, pattern: str) -> bool:
    """Return whether a pattern matches a module, by its name or that of its weight."""
    return matches_tensor(f"{module}{WEIGHT}", pattern)


def matches_as_llama(tensor: str, pattern: str) -> bool:
    """Return whether a pattern matches a tensor or, as in llama-quantize, is a regular expression found in its name.

    A shell pattern such as "*.weight" need not be a regular expression, and is then found nowhere.
    """
    try:
        return matches_tensor(tensor, pattern) or re.search(pattern, tensor) is not None
    except re.error:
        return False


def check_patterns(
    option: str,
    patterns: Iterable[str],
    names: Iterable[str],
    noun: str,
    matches: Callable[[str, str], bool] = matches_tensor,
) -> None:
    """Raise ValueError with the nearest names if a pattern matches no name; `noun` is what the names are of."""
    names = list(names)
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(f"no {noun} has a name that matches {pattern!r}{advice(option, pattern, names, matches)}")


def advice(
    option: str, pattern: str, names: Iterable[str], matches: Callable[[str, str], bool] = matches_tensor
) -> str:
    """Return a hint for a pattern that matches nothing: a spelling that does match, else the nearest names.

    The text may have been meant as a part of a name, as a regular expression for one, or in another case.
    """
    text = pattern.removeprefix("re:")
    names = list(dict.fromkeys(names))
    plain = text.strip("*")
    for spelling in (f"*{plain}*", f"re:.*{text}", f"re:(?i).*{re.escape(plain)}", f"re:(?i).*{text}"):
        try:
            matching = [name for name in names if plain and matches(name, spelling)]
        except re.error:
            continue
        if matching:
            return f"; {option} '{spelling}' matches {len(matching)} of them: {_first_names(matching)}"
    return nearest(plain, names)


def nearest(text: str, names: Iterable[str]) -> str:
    """Return the end of an error: names that contain a text, or else that resemble it as a whole or by their ends."""
    names = list(names)
    similar = [name for name in names if text and text in name] or _similar_names(text, names)
    return f"; the nearest are {_first_names(similar)}" if similar else ""


def _similar_names(text: str, names: list[str]) -> list[str]:
    """Return the names that resemble a text themselves, or whose module or its last words do.

    So "up_proj" finds "layers.0.mlp.up_proj.weight"; of all names with equal last words it is the first.
    """
    name_by_part: dict[str, str] = {}
    for name in names:
        module = name.removesuffix(WEIGHT)
        for part in (name, module, module.rpartition(".")[2], ".".join(module.split(".")[-2:])):
            name_by_part.setdefault(part, name)
    plain = re.sub(r"[*?\[\]]", "", text).strip(".")
    parts = difflib.get_close_matches(plain, name_by_part, n=NEAREST, cutoff=0.5)
    return list(dict.fromkeys(name_by_part[part] for part in parts))


def _first_names(names: list[str]) -> str:
    """Return the first of some names, and dots if there are more."""
    return ", ".join(names[:NEAREST]) + ", ..." * (len(names) > NEAREST)
