"""Errors about a tensor or a file, raised again with its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def naming(
    message: Callable[[Exception], str],
    kinds: type[Exception] | tuple[type[Exception], ...] = (TypeError, OverflowError, ValueError),
) -> Iterator[None]:
    """Turn an error of some kinds in the block into a ValueError with the message that `message` makes of it.

    Functions that fail know neither the tensor nor the file that they work on; their callers add it so.
    """
    try:
        yield
    except kinds as error:
        raise ValueError(message(error)) from error
