"""Line charts as SVG, small enough to write by hand: a point for each measurement, a line for each job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 780, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 270, 30, 44
COLOURS = ("#7a4a21", "#c8641e", "#2f6f8f", "#5b8c3a", "#8a4f9e", "#b23a48", "#777777", "#1f9e89")
FONT = 'font-family="sans-serif" font-size="12"'


def chart(title: str, x: str, y: str, lines: Mapping[str, Points]) -> str:
    """A chart of lines over places on the x axis, which are spread evenly, from zero on the y axis.

    The y axis is logarithmic where values differ by more than a hundred times.
    """
    places = sorted({at for points in lines.values() for at, _ in points})
    values = [value for points in lines.values() for _, value in points if value > 0]
    logarithmic = max(values) > 100 * min(values)
    marks = _marks(min(values), max(values), logarithmic)

    def across(at: float) -> float:
        share = places.index(at) / max(1, len(places) - 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def up(value: float) -> float:
        if logarithmic:
            low, high = log10(marks[0]), log10(marks[-1])
            share = (log10(max(value, marks[0])) - low) / (high - low)
        else:
            share = value / marks[-1]
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for mark in marks:
        at = up(mark)
        made.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{mark:g}</text>'
        )
    for place in places:
        made.append(
            f'<text x="{across(place):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{place:g}</text>'
        )
    made.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>'
        f'<text x="14" y="{(TOP + HEIGHT - BOTTOM) / 2:.0f}" text-anchor="middle"'
        f' transform="rotate(-90 14 {(TOP + HEIGHT - BOTTOM) / 2:.0f})">{escape(y)}</text>'
    )
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        dashes = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in sorted(points))
        made.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
        )
        made += [
            f'<circle cx="{across(at):.1f}" cy="{up(value):.1f}" r="3" fill="{colour}"/>'
            for at, value in points
        ]
        at = TOP + 8 + 17 * number
        made.append(
            f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 34}" y1="{at}" y2="{at}"'
            f' stroke="{colour}" stroke-width="2"{dashes}/>'
            f'<text x="{WIDTH - RIGHT + 40}" y="{at + 4}">{escape(name)}</text>'
        )
    return "\n".join([*made, "</svg>"]) + "\n"


def _marks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Round values that span the axis."""
    if logarithmic:
        return [10.0**k for k in range(floor(log10(low)), ceil(log10(high)) + 1)]
    step = 10.0 ** floor(log10(high))
    step = next(s for s in (step / 10, step / 5, step / 2, step, step * 2) if high / s <= 6)
    return [step * k for k in range(ceil(high / step) + 1)]
