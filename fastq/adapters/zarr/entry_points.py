"""The codecs that zarr finds without `register`, also in new processes: fastq's, or zarr's own where it has them."""

from __future__ import annotations

from typing import Any

import zarr.codecs

from fastq.adapters.zarr import codecs

# zarr would choose between two classes of one name with a warning
CastValue: Any = getattr(zarr.codecs, "CastValue", codecs.CastValue)
ScaleOffset: Any = getattr(zarr.codecs, "ScaleOffset", codecs.ScaleOffset)
BitRound = codecs.BitRound
