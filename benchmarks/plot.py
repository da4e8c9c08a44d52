# SPDX-License-Identifier: Apache-2.0
"""Draws times by size as an SVG file, logarithmic both ways, with nothing but the standard library,
so that every machine can draw."""

import math
import statistics
from xml.sax.saxutils import escape

import harness

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 80, 150, 50, 60
COLOURS = ["#0b6e99", "#d9730d", "#6940a5", "#0f7b6c", "#ad1a72"]


def _axis(values):
    """The powers of ten around the values."""
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


class _Frame:
    """Maps numbers to points of the picture."""

    def __init__(self, sizes, times):
        self.first, self.last = math.log2(min(sizes)), math.log2(max(sizes))
        self.low, self.high = _axis(times)

    def x(self, size):
        span = self.last - self.first or 1.0
        return LEFT + (math.log2(size) - self.first) / span * (WIDTH - LEFT - RIGHT)

    def y(self, us):
        span = self.high - self.low
        return HEIGHT - BOTTOM - (math.log10(us) - self.low) / span * (HEIGHT - TOP - BOTTOM)


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


def _grid(frame, sizes):
    parts = []
    for power in range(frame.low, frame.high + 1):
        y = frame.y(10.0**power)
        label = {-1: "0.1 us", 0: "1 us", 3: "1 ms", 6: "1 s"}.get(
            power, f"{10 ** (power % 3)}{' us' if power < 3 else ' ms' if power < 6 else ' s'}"
        )
        parts += [_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"), _text(LEFT - 8, y + 4, label, "end")]
    for size in sizes:
        x = frame.x(size)
        parts += [
            _line(x, TOP, x, HEIGHT - BOTTOM, "#eee"),
            _text(x, HEIGHT - BOTTOM + 20, harness.format_size(size), size=10),
        ]
    return parts


def _curve(frame, name, points, colour):
    """The medians joined, and the range of the rounds at each size."""
    parts = []
    middles = [(frame.x(size), frame.y(statistics.median(times))) for size, times in points]
    for (size, times), (x, y) in zip(points, middles, strict=True):
        parts.append(_line(x, frame.y(min(times)), frame.x(size), frame.y(max(times)), colour, 3))
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in middles)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    x, y = middles[-1]
    parts.append(_text(x + 10, y + 4, name, "start", 13, colour))
    return parts


def times_by_size(title, lines):
    """lines: {name: [(bytes, [us of each round])]}, all times above 0. Returns the SVG text."""
    sizes = sorted({max(size, 1) for points in lines.values() for size, _ in points})
    times = [us for points in lines.values() for _, list_us in points for us in list_us]
    frame = _Frame(sizes, times)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 26, title, size=16),
        _text(WIDTH / 2, HEIGHT - 12, "size; bars: range of the rounds"),
        *_grid(frame, sizes),
    ]
    for i, (name, points) in enumerate(lines.items()):
        parts += _curve(frame, name, points, COLOURS[i % len(COLOURS)])
    return "\n".join([*parts, "</svg>"]) + "\n"
