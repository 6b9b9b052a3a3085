"""Silent waits: what takes longer than a moment is told on a terminal, and nowhere else."""

import time

import pytest

from fastq.tools.cli import waits


class Stream:
    """A standard error that is a terminal, or is none."""

    def __init__(self, is_terminal):
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def written(monkeypatch):
    """What is written to standard error past Python."""
    found = []
    monkeypatch.setattr(waits.os, "write", lambda number, content: found.append((number, content)))
    monkeypatch.setattr(waits, "SILENCE", 0.02)
    return found


def waited(what, for_words_of):
    with waits.notice_if_slow(what):
        deadline = time.monotonic() + 5
        while for_words_of is not None and not for_words_of and time.monotonic() < deadline:
            time.sleep(0.01)


def test_a_wait_is_told_on_a_terminal(written, monkeypatch):
    monkeypatch.setattr(waits.sys, "stderr", Stream(True))
    waited("opening big.nc", written)
    assert written == [(2, b"fastq: opening big.nc\n")]


def test_what_is_quick_or_goes_to_a_pipe_is_not(written, monkeypatch):
    monkeypatch.setattr(waits.sys, "stderr", Stream(True))
    waited("opening small.nc", None)
    for stream in (Stream(False), None):
        monkeypatch.setattr(waits.sys, "stderr", stream)
        with waits.notice_if_slow("opening big.nc"):
            time.sleep(0.05)
    assert written == []
