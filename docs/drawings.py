"""Draw the two pictures of docs/design.md, docs/_static/rooms.svg and call.svg: `python docs/drawings.py`.

They are 400 pixels wide, the width of a phone, and take the colour of the text around them where a page holds them as
elements, as the site does; an image of its own follows the browser's scheme.
"""

from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "_static"
WIDTH = 400
_STYLE = """<style>
svg:root { color: #222; } @media (prefers-color-scheme: dark) { svg:root { color: #ddd; } }
.drawing text { fill: currentColor; font-family: sans-serif; text-anchor: middle; }
.drawing .name { font-size: 14px; font-weight: bold; }
.drawing .what { font-size: 11.5px; }
.drawing rect { fill: #56b4e9; fill-opacity: 0.18; stroke: currentColor; }
.drawing rect.aside { fill: #e69f00; }
.drawing path { fill: none; stroke: currentColor; stroke-width: 1.5; }
.drawing path.head { fill: currentColor; stroke: none; }
</style>"""

Box = tuple[int, int, int, str, str, bool]  # left, top, width, name, contents, whether it is an aside
BOX = 40  # pixels high

ROOMS: list[Box] = [
    (0, 0, 400, "tools", "command line, files, models, pictures", True),
    (0, 56, 400, "adapters", "dask, xarray, zarr", True),
    (0, 112, 400, "ops", "an operation in each file", False),
    (0, 168, 240, "plan", "from a request and arrays to a launch", False),
    (256, 168, 144, "reference", "the contract in NumPy", True),
    (0, 224, 240, "kernels", "arithmetic; traversals and bodies", False),
    (256, 224, 144, "requests", "arguments, validated", False),
    (0, 280, 240, "engine", "vectors, compiler, threads", False),
    (256, 280, 144, "results, formats", "arrays; tables", False),
    (0, 336, 400, "system", "arguments, imports, tuning by CPU", False),
]
ROOM_ARROWS = [
    *[(200, top + BOX, 200, top + 56) for top in (0, 56)],
    *[(120, top + BOX, 120, top + 56) for top in (112, 168, 224, 280)],
    *[(328, top + BOX, 328, top + 56) for top in (168, 224, 280)],
    (240, 190, 262, 224),
]
STEPS: list[Box] = [
    (0, 0, 220, "ops", 'quantize(x, "int8", axis=0)', False),
    (0, 64, 220, "plan cache", "key: dtypes, shapes, options", False),
    (256, 64, 144, "request", "arguments checked", True),
    (256, 120, 144, "spec", "rule and NaN policy", True),
    (256, 176, 144, "view", "outer, length, inner", True),
    (256, 232, 144, "plan", "loops, threads, kernels", True),
    (0, 232, 220, "driver", "addresses, checks, threads", False),
    (0, 296, 220, "kernel", "range, scale, codes: row by row", False),
    (0, 360, 220, "QuantizedArray", "codes, scale, zero point", False),
    (256, 360, 144, "settle", "make ready, or raise", True),
]
STEP_ARROWS = [
    (110, 40, 110, 64),
    (110, 104, 110, 232),
    (220, 84, 256, 84),
    *[(328, top + BOX, 328, top + 56) for top in (64, 120, 176)],
    (256, 252, 220, 252),
    (110, 272, 110, 296),
    (110, 336, 110, 360),
    (220, 326, 280, 360),
    (340, 360, 226, 262),
]
STEP_NOTES = [(150, 171, "known before"), (238, 78, "new"), (203, 352, "status not 0")]


def drawing(title: str, boxes: list[Box], arrows: list[tuple[int, ...]], notes: list[tuple[int, int, str]]) -> str:
    """Return the SVG of boxes, of arrows from x, y to x, y, and of words at places."""
    height = max(top for _, top, *_ in boxes) + BOX
    parts = [_arrow(*arrow) for arrow in arrows]
    for left, top, width, name, what, aside in boxes:
        middle, kind = left + width // 2, ' class="aside"' if aside else ""
        parts.append(f'<rect{kind} x="{left}" y="{top}" width="{width}" height="{BOX}" rx="4"/>')
        parts.append(f'<text class="name" x="{middle}" y="{top + 17}">{escape(name)}</text>')
        parts.append(f'<text class="what" x="{middle}" y="{top + 32}">{escape(what)}</text>')
    parts += [f'<text class="what" x="{x}" y="{y}">{escape(words)}</text>' for x, y, words in notes]
    size = f'viewBox="-1 -1 {WIDTH + 2} {height + 2}" width="{WIDTH + 2}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" role="img" {size}>'
    return "\n".join([head, f"<title>{escape(title)}</title>", _STYLE, *parts, "</svg>"]) + "\n"


def _arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    along, down = (to_x - x) / length, (to_y - y) / length
    ends = [(to_x - 7 * along + side * down, to_y - 7 * down - side * along) for side in (-3.5, 3.5)]
    corners = " L".join(f"{a:.1f} {b:.1f}" for a, b in ends)
    return f'<path d="M{x} {y} L{to_x} {to_y}"/><path class="head" d="M{to_x} {to_y} L{corners} Z"/>'


def drawings() -> dict[str, str]:
    """Return the pictures by the names of their files."""
    return {
        "rooms.svg": drawing("The rooms of fastq; imports point down", ROOMS, ROOM_ARROWS, []),
        "call.svg": drawing("One call", STEPS, STEP_ARROWS, STEP_NOTES),
    }


if __name__ == "__main__":
    for file, text in drawings().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
