"""Inventories of other projects for intersphinx, of the names that these pages and docstrings link to.

The projects' own would have to be fetched: a build would need the network, and fail with it or with their changes.
"""

import zlib
from pathlib import Path

# address, and names: role, page
PROJECTS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "python": (
        "https://docs.python.org/3/",
        {"dataclasses.replace": ("py:function", "library/dataclasses.html#$")},
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {
            "numpy.ndarray": ("py:class", "reference/generated/numpy.ndarray.html#$"),
            "numpy.ndarray.resize": ("py:method", "reference/generated/numpy.ndarray.resize.html#$"),
            "numpy.memmap": ("py:class", "reference/generated/numpy.memmap.html#$"),
            "numpy.packbits": ("py:function", "reference/generated/numpy.packbits.html#$"),
            "numpy.load": ("py:function", "reference/generated/numpy.load.html#$"),
            "numpy.lib.format.open_memmap": (
                "py:function",
                "reference/generated/numpy.lib.format.open_memmap.html#$",
            ),
        },
    ),
    "dask": (
        "https://docs.dask.org/en/stable/",
        {
            "dask.array.Array": ("py:class", "generated/dask.array.Array.html#$"),
            "dask.array.from_zarr": ("py:function", "generated/dask.array.from_zarr.html#$"),
            "dask.array.reduction": ("py:function", "generated/dask.array.reduction.html#$"),
        },
    ),
    "xarray": (
        "https://docs.xarray.dev/en/stable/",
        {
            "xarray.DataArray": ("py:class", "generated/xarray.DataArray.html#$"),
            "xarray.Dataset": ("py:class", "generated/xarray.Dataset.html#$"),
            "xarray.decode_cf": ("py:function", "generated/xarray.decode_cf.html#$"),
            "xarray.open_dataset": ("py:function", "generated/xarray.open_dataset.html#$"),
        },
    ),
}


def mapping(folder: Path) -> dict[str, tuple[str, str]]:
    """Write the inventories into a folder, and return the setting `intersphinx_mapping`."""
    folder.mkdir(parents=True, exist_ok=True)
    for project, (_, names) in PROJECTS.items():
        (folder / f"{project}.inv").write_bytes(inventory(project, names))
    return {project: (address, str(folder / f"{project}.inv")) for project, (address, _) in PROJECTS.items()}


def inventory(project: str, names: dict[str, tuple[str, str]]) -> bytes:
    """Return an inventory in version 2 of Sphinx's format."""
    lines = [f"{name} {role} 1 {page} -\n" for name, (role, page) in sorted(names.items())]
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
    text = head + "# The remainder of this file is compressed using zlib.\n"
    return text.encode() + zlib.compress("".join(lines).encode())
