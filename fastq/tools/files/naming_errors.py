"""Errors about a tensor or a file, raised again with its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def naming(
    message: Callable[[Exception], str],
    kinds: type[Exception] | tuple[type[Exception], ...] = (TypeError, OverflowError, ValueError),
) -> Iterator[None]:
    """Turn an error about a tensor into a ValueError that names it."""
    try:
        yield
    except kinds as error:
        raise ValueError(message(error)) from error
