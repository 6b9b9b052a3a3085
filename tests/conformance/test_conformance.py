"""fastq under a convention gives the bytes of the system that it is named after."""

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


def test_same_bytes_as_the_system(system):
    report = compare(system)
    assert not report.differences, "\n".join(report.differences)
    assert report.values >= VALUES
    assert report.on_ties >= report.values / 2


def test_another_convention_is_seen_to_differ(system):
    assert differs(system, system.neighbour)
