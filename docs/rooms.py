"""Draw docs/rooms.svg: the rooms of the package by their floors, and what imports what. From the imports themselves."""

from __future__ import annotations

import ast
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "ignite_tf_magic"
WIDTH, FLOOR_HEIGHT, BOX_HEIGHT, GAP, CHAR_WIDTH, MARGIN = 980, 62, 26, 14, 7.4, 12


def rooms() -> list[list[str]]:
    """Return the rooms by floors, lowest first, as tests/test_architecture.py lists and checks them."""
    listed = ast.parse((DOCS.parent / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    value = next(n.value for n in listed.body if isinstance(n, ast.AnnAssign) and n.target.id == "ROOMS")
    return [list(floor) for floor in ast.literal_eval(value)]


def room_of(module: str, known: list[str]) -> str:
    """Return the innermost room of a module."""
    return max((each for each in known if f"{module}.".startswith(f"{each}.")), key=len, default="")


def imports(known: list[str]) -> dict[str, set[str]]:
    """Return which rooms a room imports."""
    found: dict[str, set[str]] = {room: set() for room in known}
    for path in PACKAGE.rglob("*.py"):
        own = room_of(".".join(path.relative_to(PACKAGE).with_suffix("").parts), known)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE.name):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}".removeprefix(f"{PACKAGE.name}.")
                    other = room_of(full, known)
                    if own and other not in ("", own):
                        found[own].add(other)
    return found


def shortest(arrows: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Leave out arrows that others lead along: what is imported below is within reach of what is above."""

    def reached(start: str) -> set[str]:
        below = arrows[start]
        return below.union(*map(reached, below)) if below else set()

    return sorted(
        (own, other)
        for own, others in arrows.items()
        for other in others
        if not any(other in reached(between) for between in others)
    )


def picture() -> str:
    """Return the drawing as SVG."""
    floors = rooms()
    height = len(floors) * FLOOR_HEIGHT + MARGIN
    places: dict[str, tuple[float, float, float]] = {}
    for number, floor in enumerate(floors):
        widths = [len(room) * CHAR_WIDTH + 2 * MARGIN for room in floor]
        left = (WIDTH - sum(widths) - GAP * (len(floor) - 1)) / 2
        for room, width in zip(floor, widths, strict=True):
            places[room] = left, height - (number + 1) * FLOOR_HEIGHT + MARGIN, width
            left += width + GAP
    font = 'font-family="monospace" font-size="12"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {font}>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for own, other in shortest(imports(list(places))):
        (x1, y1, w1), (x2, y2, w2) = places[own], places[other]
        begin, end = (x1 + w1 / 2, y1 + BOX_HEIGHT), (x2 + w2 / 2, y2)
        bend = f"{begin[0]:.0f} {begin[1] + 30:.0f} {end[0]:.0f} {end[1] - 30:.0f}"
        curve = f"M{begin[0]:.0f} {begin[1]:.0f} C{bend} {end[0]:.0f} {end[1]:.0f}"
        lines.append(f'<path d="{curve}" fill="none" stroke="#90a4ae" stroke-width="1.2"/>')
    for room, (x, y, width) in places.items():
        box = f'x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX_HEIGHT}"'
        middle = f'x="{x + width / 2:.0f}" y="{y + 17:.0f}" text-anchor="middle"'
        lines.append(f'<rect {box} rx="4" fill="#e3f2fd" stroke="#1e88e5"/>')
        lines.append(f"<text {middle}>{escape(room.replace('.', '/'))}</text>")
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    (DOCS / "rooms.svg").write_text(picture(), encoding="utf-8")
