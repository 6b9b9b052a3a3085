"""Modules and commands of the benchmark of the checkout."""

import importlib

from click.testing import CliRunner

PACKAGE = "bench"  # of the checkout; that of a wheel has fewer modules


def part(name):
    """A module of the benchmark."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def invoke(run, *arguments, exit_code=0):
    """What a command of the benchmark prints."""
    outcome = CliRunner().invoke(run, [str(a) for a in arguments])
    assert outcome.exit_code == exit_code, outcome.output
    return outcome.output
