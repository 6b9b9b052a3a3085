"""Adapters to libraries with arrays of their own: dask, xarray and zarr."""
