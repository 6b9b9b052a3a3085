"""What the tests of other systems need to be imported."""

import ggml


def pytest_configure(config):
    """Name the markers of xarray's tests, whose data are used here; load ggml before any other library.

    Where eccodes is in the process already, the library of xllamacpp 2026.10 ends it as it is loaded: std::bad_alloc.
    """
    ggml.library()
    for name in ("asyncio", "flaky", "network", "skip_if_param", "skip_with_dask_array"):
        config.addinivalue_line("markers", f"{name}: of xarray's tests")
