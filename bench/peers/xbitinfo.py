"""xbitinfo: the rounding of a DataArray, by NumPy."""

from __future__ import annotations

import xarray
import xbitinfo

from ..calls import KEEPBITS, Operands
from ..verify import EXACT
from . import Runner


def bitround(o: Operands) -> Runner:
    x = xarray.DataArray(o.first, name="x")

    def call() -> xarray.DataArray:
        return xbitinfo.xr_bitround(x, KEEPBITS)

    return Runner(call, lambda: {"values": call().values}, EXACT)
