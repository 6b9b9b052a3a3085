"""The laboratory: what the package does on machines that we do not have, `python -m tests.platforms NAME`."""

import tests.campaigns  # noqa: F401  (by which modules of tests/support are found)
