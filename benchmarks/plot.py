# SPDX-License-Identifier: Apache-2.0
"""Draws times and ratios by size as SVG, logarithmic both ways, with nothing but the standard
library, so that every machine can draw."""

import math
import statistics
from xml.sax.saxutils import escape

import harness

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 80, 150, 50, 60
COLOURS = ["#0b6e99", "#d9730d", "#6940a5", "#0f7b6c", "#ad1a72", "#64473a", "#787774", "#b59f00"]
LABEL_HEIGHT = 15


def _decades(values):
    """The powers of ten around the values."""
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def _steps(values):
    """1, 2 and 5 of the decades, as many as it takes to have the values, and 1, between them."""
    values = [*values, 1.0]
    ticks = [digit * decade for decade in _decades(values) for digit in (1, 2, 5)]
    first = max(i for i, tick in enumerate(ticks) if tick <= min(values))
    last = min(i for i, tick in enumerate(ticks) if tick >= max(values))
    first, last = (first - 1, last) if first == last > 0 else (first, max(last, first + 1))
    return ticks[first : last + 1]


class _Frame:
    """Maps numbers to points of the picture."""

    def __init__(self, sizes, ticks):
        self.first, self.last = math.log2(min(sizes)), math.log2(max(sizes))
        self.low, self.high = math.log10(ticks[0]), math.log10(ticks[-1])

    def x(self, size):
        span = self.last - self.first or 1.0
        return LEFT + (math.log2(size) - self.first) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _text(x, y, text, anchor="middle", size=12, colour="#333"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(text)}</text>'
    )


def _line(x1, y1, x2, y2, colour, width=1.0):
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"/>'
    )


def _time(us):
    for least, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= least:
            return f"{us / least:g} {unit}"
    return f"{us:g} us"


def _grid(frame, sizes, labels):
    """labels: {value: text} of the lines across"""
    parts = []
    for value, label in labels.items():
        y = frame.y(value)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"), _text(LEFT - 8, y + 4, label, "end")]
    for size in sizes:
        x = frame.x(size)
        parts += [
            _line(x, TOP, x, HEIGHT - BOTTOM, "#eee"),
            _text(x, HEIGHT - BOTTOM + 20, harness.format_size(size), size=10),
        ]
    return parts


def _curve(frame, points, colour):
    """The medians joined, and the range of the values at each size."""
    parts = []
    middles = [(frame.x(size), frame.y(statistics.median(values))) for size, values in points]
    for (_, values), (x, y) in zip(points, middles, strict=True):
        parts.append(_line(x, frame.y(min(values)), x, frame.y(max(values)), colour, 3))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in middles)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    return parts


def _names(frame, lines, colours):
    """Each beside the end of its line, and below the one above it."""
    ends = [
        (frame.y(statistics.median(points[-1][1])), frame.x(points[-1][0]), name)
        for name, points in lines.items()
    ]
    parts, above = [], -math.inf
    for y, x, name in sorted(ends):
        above = max(y, above + LABEL_HEIGHT)
        parts.append(_text(x + 10, above + 4, name, "start", 13, colours[name]))
    return parts


def _picture(title, lines, labels, across, along, marked=()):
    """labels: {value: text} of the lines across, some of them marked; across, along: what the axes
    are"""
    lines = {name: [(max(size, 1), v) for size, v in points] for name, points in lines.items()}
    sizes = sorted({size for points in lines.values() for size, _ in points})
    frame = _Frame(sizes, sorted(labels))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(lines)}
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 26, title, size=16),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, across),
        f'<g transform="rotate(-90 16 {middle:.1f})">{_text(16, middle, along)}</g>',
        *_grid(frame, sizes, labels),
    ]
    for value in marked:
        parts.append(_line(LEFT, frame.y(value), WIDTH - RIGHT, frame.y(value), "#555", 1.5))
    for name, points in lines.items():
        parts += _curve(frame, points, colours[name])
    return "\n".join([*parts, *_names(frame, lines, colours), "</svg>"]) + "\n"


def _values(lines):
    return [value for points in lines.values() for _, values in points for value in values]


def times_by_size(title, lines):
    """lines: {name: [(bytes, [us of each round])]}, all times above 0. Returns the SVG text."""
    labels = {us: _time(us) for us in _decades(_values(lines))}
    return _picture(title, lines, labels, "size; bars: range of the rounds", "time")


def ratios_by_size(title, lines, what, bars):
    """lines: {name: [(bytes, [low, ratio, high])]}, all above 0; what the ratio is, and low and
    high. Returns the SVG text."""
    labels = {ratio: f"{ratio:g}" for ratio in _steps(_values(lines))}
    return _picture(title, lines, labels, f"size; bars: {bars}", what, [1.0])
