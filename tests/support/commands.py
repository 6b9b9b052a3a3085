"""The command line in this process: what it prints, what it says on standard error, how it ends."""

from click.testing import CliRunner

from fastq.tools.cli.app import cli


def invoke(*arguments, **environment):
    """The end of a command, which is not an exception but an exit."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def run(*arguments, exit_code=0, **environment):
    """What a command prints on standard output."""
    result = invoke(*arguments, **environment)
    assert result.exit_code == exit_code, result.output
    return result.stdout


def told(*arguments, exit_code=1, **environment):
    """What a command says on standard error."""
    result = invoke(*arguments, **environment)
    assert result.exit_code == exit_code, result.output
    return result.stderr


def refused(*arguments):
    """The one line by which a command says what is wrong."""
    result = invoke(*arguments)
    assert result.exit_code in (1, 2), result.output
    return result.stderr.strip().splitlines()[-1]
