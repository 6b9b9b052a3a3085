"""Figures of code cells as SVG in the colours of the page, which change with its theme; plain tables of commands."""

import io
import itertools
import os
import re
import subprocess

INK = "#01fe02"  # stands for the colour of text; no picture has it
LEGIBLE = 9  # pixels that the smallest text has at least: on a narrow screen pictures scroll
SMALL = 0.833  # of the size of other text, what matplotlib calls small
_numbers = itertools.count()


def _svg(figure: object) -> str:
    """Return a figure as SVG that inherits the page's colour, without a ground, its identifiers unique to the page."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": str(next(_numbers))}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None}, bbox_inches="tight")  # type: ignore[attr-defined]
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    head, width, rest = re.split(r'width="([\d.]+)pt" height="[\d.]+pt"', text, maxsplit=1)
    least = float(width) * LEGIBLE / matplotlib.rcParams["font.size"] / SMALL
    return f'{head}class="picture" style="width: {width}pt; min-width: {least:.0f}px"{rest}'


def _show(figure: object) -> str:
    return f'<div class="picture">{_svg(figure)}</div>'


def _sh(line: str, cell: str) -> None:
    """Run commands of a shell, print what they print, and fail where one does."""
    done = subprocess.run(["sh", "-ec", cell], capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(done.stderr)


def _install() -> None:
    import matplotlib
    from IPython import get_ipython

    shell = get_ipython()
    shell.run_line_magic("matplotlib", "inline")
    formatters = shell.display_formatter.formatters
    formatters["image/png"].type_printers.clear()
    formatters["text/html"].for_type_by_name("matplotlib.figure", "Figure", _show)
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    matplotlib.rcParams.update(dict.fromkeys(names, INK) | {"figure.facecolor": "none", "axes.facecolor": "none"})
    matplotlib.rcParams.update({"legend.facecolor": "none", "legend.framealpha": 0, "figure.max_open_warning": 0})
    shell.register_magic_function(_sh, "cell", "sh")


os.environ.pop("FORCE_COLOR", None)  # ipykernel asks for colours and progress bars
os.environ |= {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "132"}
_install()
