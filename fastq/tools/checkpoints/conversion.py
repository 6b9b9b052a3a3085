"""The protocol of conversions of a model directory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.files.pipeline import Task


class Conversion(Protocol):
    """The work on each shard of a model."""

    source: ModelFolder  # the model
    key: dict[str, Any]  # everything that the result depends on except the source: JSON values

    def tasks(self, shard: str) -> Iterable[list[Task]]:
        """Yield the tasks of each tensor of a shard of the model, in its order.

        A list has one task, or one for each matrix of a tensor of experts; it is empty if the tensor is a part of a
        weight, which has its task at another tensor. Pieces are made only when they are asked for.
        """

    def metadata(self, shard: str) -> dict[str, str]:
        """Return the metadata of a shard of the result."""

    def config(self) -> dict[str, Any]:
        """Return config.json of the result."""
