"""xbitinfo: the rounding of a DataArray, by NumPy."""

from __future__ import annotations

from collections.abc import Callable

import xarray
import xbitinfo

from .. import data
from ..calls import KEEPBITS
from ..cases import Case
from ..verify import EXACT
from . import Runner


def bitround(case: Case) -> Runner:
    x = xarray.DataArray(data.operands(case).first, name="x")

    def call() -> xarray.DataArray:
        return xbitinfo.xr_bitround(x, KEEPBITS)

    return Runner(call, lambda: {"values": call().values}, EXACT)


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {("bitround", "xr_bitround"): bitround}
