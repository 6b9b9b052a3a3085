"""What the tests of other systems need to be imported."""


def pytest_configure(config):
    """Name the markers of xarray's tests: their data are used here."""
    for name in ("asyncio", "flaky", "network", "skip_if_param", "skip_with_dask_array"):
        config.addinivalue_line("markers", f"{name}: of xarray's tests")
