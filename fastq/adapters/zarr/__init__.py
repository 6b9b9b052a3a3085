"""The codec bitround of zarr-extensions for zarr 3, by kernels; the extra ``[zarr]``."""

from __future__ import annotations

import contextlib


def register() -> None:
    """Register ``bitround``, also as ``numcodecs.bitround``; zarr then uses it in this process.

    zarr finds ``bitround`` in any process where fastq is installed; this lets it use fastq's codec for the name of
    numcodecs, too. Written arrays have the same metadata and chunks as with any other implementation. zarr's
    configuration then names fastq's codecs; one of zarr's own is used for data types other than floats of up to 64
    bits.

    Raises
    ------
    ModuleNotFoundError
        If zarr is not installed.

    Examples
    --------
    >>> import fastq
    >>> fastq.zarr.register()
    """
    try:
        import zarr
        from zarr import registry
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("fastq.zarr.register needs zarr: pip install zarr") from error
    from fastq.adapters.zarr import codecs

    for name, codec in codecs.CODECS.items():
        with contextlib.suppress(KeyError, ValueError):  # zarr has no codec of this name: a ValueError from 3.4 on
            if (own := registry.get_codec_class(name)) is not codec:
                codec.own = own
        registry.register_codec(name, codec)
        # set as a whole: a dot in a name would separate keys of a setting
        known = zarr.config.get("codecs", {})
        zarr.config.set({"codecs": {**known, name: f"{codec.__module__}.{codec.__qualname__}"}})
