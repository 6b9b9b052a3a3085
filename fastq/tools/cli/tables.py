"""Tables on a terminal: the text of cells, rows that are joined, and columns that a narrow terminal omits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.table import Table

from fastq.tools.cli.terminal import UNLIMITED, console_for_tables, print_wrapped, printable, terminal_width
from fastq.tools.files.texts import count_text

OUTLIERS_SHOWN = 4
EQUAL = "equal"  # instead of an infinite ratio

Entry = dict[str, Any]  # numbers, texts, shapes and None by the names of columns
# titles of columns that are not their names
TITLES = {
    "name": "tensor",
    "lo": "min",
    "hi": "max",
    "nan": "NaN",
    "outliers": "outlier channels",
    "sqnr_db": "SQNR dB",
    "max_abs_error": "largest error",
    "mean_abs_error": "mean error",
    "mse": "mean squared error",
    "max_relative_error": "largest relative error",
    "_FillValue": "fill value",
    "quantization_nsb": "kept bits",
    "quantization_nsd": "kept digits",
}
TEXT = ("name", "variable", "dtype", "scheme", "type", "from", "to", "key", "value", "a", "b")
COUNTS = ("nan", "infinite", "clipped", "outliers")  # columns in which None is shown as a dash
SUMS = ("bytes", "bytes_before", "bytes_a", "bytes_b")  # columns that are added up for rows that become one
STYLES = {"bits": ".3f", "sqnr_db": ".2f", "lo": ".4g", "hi": ".4g", "Gelem/s": ".2f", "x reference": ".1f"}
STYLES |= dict.fromkeys(("max_abs_error", "mean_abs_error", "mse", "max_relative_error"), ".3g")
STYLES |= dict.fromkeys(("scale_factor", "add_offset"), ",.9g")  # all digits of a float32, not of its float64 in zarr
# columns in the order in which a narrow terminal omits them
DISPENSABLE = (
    *("mean_abs_error", "bytes_before", "bytes_a", "clipped", "outliers", "infinite", "bits", "bytes_b", "from", "a"),
    *("_FillValue", "add_offset", "scale_factor", "max_abs_error", "bytes", "nan", "lo", "hi", "shape"),
)
# characters that texts keep while there are columns to omit
LEAST_NAME = 26
LEAST_TEXT = 22
SHORTEST = 4  # characters that texts keep in any case
# a scheme up to its axis and block size, which are kept even where the rest is cut off
GRANULARITY = re.compile(r".*?axis=\S+(?: blocks of \d+)?")
DOT_BEHIND_STAR = re.compile(r"\*\.(?!\d)")  # which the star stands for as well


def title_of(column: str) -> str:
    """Return the title of a column: its name in words, A and B in upper case, unless it has another one."""
    words = (word.upper() if word in ("a", "b") else word for word in column.split("_"))
    return TITLES.get(column, " ".join(words))


def cell_text(column: str, value: Any) -> str:
    """Return the text of a cell: a dash for a value that is unknown or NaN, "equal" for a ratio without noise."""
    if column == "sqnr_db" and value == math.inf:
        return EQUAL
    if value is None or (column in COUNTS and not value) or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if column == "outliers":
        return "; ".join(f"axis {axis}: {_indices(channels)}" for axis, channels in value.items())
    if isinstance(value, tuple):
        return shape_text(value)
    return printable(value) if isinstance(value, str) else format(value, STYLES.get(column, ","))


def _indices(channels: Sequence[int]) -> str:
    """Return the first indices of channels, and the number of the others."""
    more = len(channels) - OUTLIERS_SHOWN
    return ", ".join(map(str, channels[:OUTLIERS_SHOWN])) + (f" and {more:,} more" if more > 0 else "")


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text."""
    return " x ".join(map(str, shape)) or "scalar"


# Rows


def arrange_rows(entries: Iterable[Entry], *, every: bool = False, worst_first: bool = False) -> list[Entry]:
    """Return entries in the order of a table.

    Without `every`, entries without an error or NaN are joined by their reason, and come last. `worst_first` sorts the
    others by their signal to noise ratio.
    """
    own_rows: list[Entry] = []
    joined: dict[Any, list[Entry]] = {}
    for entry in entries:
        has_error = entry["sqnr_db"] not in (None, math.inf)
        if every or has_error or entry.get("nan"):
            own_rows.append(entry)
        else:
            reason = tuple(entry.get(column) for column in ("from", "to", "scheme", "a", "b"))
            joined.setdefault(reason, []).append(entry)
    if worst_first:
        own_rows.sort(key=_ratio)
    return [*own_rows, *(_joined_row(group) for group in joined.values())]


def _ratio(entry: Entry) -> float:
    """Return the sort key of an entry: its ratio, with NaN first and unmeasured entries last."""
    ratio = entry["sqnr_db"]
    if ratio is None:
        return math.inf
    return -math.inf if math.isnan(ratio) else float(ratio)


def _joined_row(entries: Sequence[Entry]) -> Entry:
    """Return one entry for several: the fields that are equal, and sums of bytes."""
    first = entries[0]
    if len(entries) == 1:
        return first
    common = {key: value for key, value in first.items() if all(entry[key] == value for entry in entries)}
    sums = {key: sum(entry[key] for entry in entries) for key in SUMS if key in first}
    return {**dict.fromkeys(first), **common, **sums, "name": count_text(len(entries), "tensor")}


# Columns and their widths


def print_table(
    entries: Sequence[Entry], columns: Sequence[str], *, total: Entry | None = None, width: int | None = None
) -> None:
    """Print a line for each entry, and the total below a rule, on standard output.

    On a narrower terminal, names are shortened in their middle, then columns are omitted, and a line says so. If the
    width is unknown, as in a pipe, all columns are shown.
    """
    rows = [*entries, *([total] if total else [])]
    cells = {column: [cell_text(column, entry.get(column)) for entry in rows] for column in columns}
    width = width or terminal_width() or UNLIMITED
    table = Table(box=SIMPLE_HEAD)
    widths = _column_widths(cells, width)
    for column, column_width in widths.items():
        side = "left" if column in TEXT else "right"
        table.add_column(title_of(column), justify=side, width=column_width, overflow="crop")  # type: ignore[arg-type]
    for k in range(len(rows)):
        row = [shorten(cells[column][k], column_width) for column, column_width in widths.items()]
        table.add_row(*row, end_section=k + 1 == len(entries))
    console_for_tables().print(table)
    losses = []
    if omitted := [title_of(column) for column in columns if column not in widths]:
        losses.append(f"without {', '.join(omitted)}")
    if any(cell_len(text) > column_width for column, column_width in widths.items() for text in cells[column]):
        losses.append("with texts shortened, names to patterns that --include and --exclude take")
    if losses:
        print_wrapped(f"{', '.join(losses)}: this terminal has {width} columns; | less -S shows all", width, "  ")


def _column_widths(cells: dict[str, list[str]], width: int) -> dict[str, int]:
    """Return the widths of the columns that are shown. If all columns fit, they are as wide as their texts.

    Else titles take more lines, then columns without values are omitted, then texts are shortened to some length, then
    columns are omitted, and at last texts are shortened further.
    """
    with_titles_in_line = {column: max(map(cell_len, (title_of(column), *texts))) for column, texts in cells.items()}
    if _table_width(with_titles_in_line) <= width:
        return with_titles_in_line
    widths = {
        column: max([*map(cell_len, texts), *map(cell_len, title_of(column).split())])
        for column, texts in cells.items()
    }
    empty = [column for column in cells if column not in TEXT and set(cells[column]) <= {"", "-"}]
    for column in empty:
        if _table_width(widths) <= width:
            return widths
        del widths[column]
    least = {column: min(full_width, _least_width(column, cells[column])) for column, full_width in widths.items()}
    for column in [column for column in DISPENSABLE if column in widths]:
        if _table_width(least) <= width:
            break
        del widths[column]
        del least[column]
    return _shrink(widths, least, width)


def _least_width(column: str, texts: Sequence[str]) -> int:
    """Return the width that a column keeps as long as other columns can be omitted; schemes are not cut."""
    if column in ("name", "key"):
        return LEAST_NAME
    longest_scheme = max((cell_len(text) for text in texts if GRANULARITY.match(text)), default=0)
    return max(LEAST_TEXT, longest_scheme) if column in TEXT else UNLIMITED


def _shrink(widths: dict[str, int], least: dict[str, int], width: int) -> dict[str, int]:
    """Return widths that fit the terminal. The widest texts are shortened first, below `least` only if necessary."""
    shrunk = dict(widths)
    for limits in (least, dict.fromkeys(widths, SHORTEST)):
        while _table_width(shrunk) > width:
            texts = [column for column in shrunk if column in TEXT and shrunk[column] > limits[column]]
            if not texts:
                break
            shrunk[max(texts, key=lambda column: shrunk[column])] -= 1
    return shrunk


def _table_width(widths: dict[str, int]) -> int:
    """Return the width of a table: each column but the last has three characters next to it, and the sides have two."""
    return sum(widths.values()) + 3 * len(widths) - 1 + 2


def shorten(text: str, width: int) -> str:
    """Shorten a text to a width: a name to a pattern that fits it, a scheme behind its block size.

    In 28 characters "model.layers.10.self_attn.q_proj.weight" is "model.lay*.10.sel*q_p*weight": words in the middle
    keep as many letters as fit, numbers are whole, and a star stands for the dot behind it, too. What still does not
    fit has a gap in its middle.
    """
    if cell_len(text) <= width:
        return text
    scheme = GRANULARITY.match(text)
    if scheme and cell_len(scheme[0]) + len(" ...") <= width:
        return f"{scheme[0]} ..."
    first, *middle, last = text.split(".") if text.count(".") > 1 else (text, "")
    for letters in range(max(map(len, middle), default=0), 0, -1):
        words = [word if word.isdecimal() or len(word) <= letters + 1 else f"{word[:letters]}*" for word in middle]
        name = DOT_BEHIND_STAR.sub("*", ".".join([first, *words, last]))
        if cell_len(name) <= width:
            return name
    mark = "..." if " " in text else "*"
    room = max(width - len(mark), 0)
    start = set_cell_size(text, room // 2)
    end = set_cell_size(text[::-1], room - room // 2)[::-1]
    return f"{start}{mark}{end}"[:width]
