"""Programs that run for minutes or days, `python -m tests.campaigns.NAME`, and short versions of them as tests.

They find each other and what tests share as pytest does, by the folders that pyproject.toml names.
"""

import os
import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS / name) for name in ("support", "campaigns")]
os.environ.setdefault("NUMBA_CACHE_DIR", str(_TESTS.parent / ".pytest_cache" / "d" / "kernels"))
os.environ.setdefault("NUMBA_NUM_THREADS", "4")
os.environ["MPLBACKEND"] = "Agg"
