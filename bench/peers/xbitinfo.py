"""xbitinfo: the rounding of a DataArray, by NumPy."""

from __future__ import annotations

from functools import partial

import xarray
import xbitinfo

from ..calls import KEEPBITS, Operands
from ..verify import EXACT
from . import Runner


def bitround(o: Operands) -> Runner:
    call = partial(xbitinfo.xr_bitround, xarray.DataArray(o.first, name="x"), KEEPBITS)
    return Runner(call, lambda: {"values": call().values}, EXACT)
