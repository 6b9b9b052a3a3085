"""fastq under a convention gives the bytes of the system that it is named after."""

import dataclasses

import pytest
from check import VALUES, compare, differs
from systems import SYSTEMS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the systems themselves


def _identifier(system):
    return f"{system.convention}-{system.quantize.__name__}"


@pytest.fixture(params=SYSTEMS, ids=_identifier)
def system(request):
    if missing := request.param.missing():
        pytest.skip(f"not installed: {', '.join(missing)}; convention {request.param.convention} is not compared")
    return request.param


@pytest.mark.slow("compiles kernels of as many formats again", quick=lambda system, half: half == 0)
@pytest.mark.parametrize("half", [0, 1])
def test_same_bytes_as_the_system(system, half):
    """Every other case of it, and the others."""
    if not (cases := system.cases[half::2]):
        pytest.skip("it has a single case")
    report = compare(dataclasses.replace(system, cases=cases), VALUES // 2)
    assert not report.differences, "\n".join(report.differences)
    assert report.values >= VALUES // 2
    assert report.on_ties >= report.values / 2


def test_another_convention_is_seen_to_differ(system):
    assert differs(system, system.neighbour)
