"""fastq under a convention gives the bytes of the system that it is named after."""

import pytest
from check import VALUES
from record import COMPARISONS

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the systems themselves


@pytest.fixture(params=COMPARISONS, ids=str)
def compared(request):
    if missing := request.param.system.missing():
        pytest.skip(f"not installed: {', '.join(missing)}; convention {request.param.key} is not compared")
    return request.param


def test_same_bytes_as_the_system(compared):
    report = compared.compare(compared.system)
    assert not report.differences, "\n".join(report.differences)
    assert report.values >= VALUES
    assert report.telling >= report.values * compared.telling


def test_another_convention_is_seen_to_differ(compared):
    if not compared.system.neighbour:
        pytest.skip("no row that differs is named: none has a bias that is a float, or these formats of float32")
    assert compared.differs(compared.system, compared.system.neighbour)
