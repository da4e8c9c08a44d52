# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison, made of what compare.json holds: Markdown, and the pictures it shows.

Pure: files() gives the texts by their names. A cell of horon stands beside those of its peers at
the same size, verb and number of ranks; the best peer is the one of the smallest median. The bound
is a busbw in GB/s that nothing can exceed here, as the user who measures knows it (of a shaped
link, say), and a time over it is the bound's busbw over the cell's. A barrier has size 0: a table,
and no picture.
"""

import statistics

import harness
import plot

COPY = "copy"  # is no library, but stands among them
OWN = ("horon", "horon-torch", COPY)  # what is no peer


def by_place(cells):
    """-> {(np, verb): {library: {size: [cell of each round]}}}, in the order of the cells"""
    places = {}
    for cell in cells:
        libraries = places.setdefault((cell["np"], cell["verb"]), {})
        libraries.setdefault(cell["library"], {}).setdefault(cell["asked"], []).append(cell)
    return places


def _median(cells, field):
    return statistics.median(cell[field] for cell in cells)


def rows_of(libraries, bound=None):
    """One place's sizes, as objects; what has no peer or no bound has None for it."""
    rows = []
    for size, ours in sorted(libraries["horon"].items()):
        times = {
            name: _median(by_size[size], "time_us")
            for name, by_size in libraries.items()
            if size in by_size
        }
        peers = [name for name in times if name not in OWN]
        best = min(peers, key=times.get, default=None)
        ratio = over = None
        if best is not None:
            theirs = libraries[best][size]
            ratio = harness.ratio_of(*([c["time_us"] for c in cells] for cells in (ours, theirs)))
        copies = libraries.get(COPY, {}).get(size)
        if bound is not None and _median(ours, "busbw") > 0:
            over = sorted(bound / cell["busbw"] for cell in ours)
        elif bound is None and copies:
            both = zip(ours, copies, strict=True)
            over = sorted(cell["time_us"] / copy["time_us"] for cell, copy in both)
        if over is not None:
            over = (statistics.median(over), over[0], over[-1])
        rows.append(
            {
                "size": size,
                "times": times,
                "best": best,
                "ratio": ratio,
                "busbw": _median(ours, "busbw"),
                "over": over,
            }
        )
    return rows


def _triple(triple):
    """A ratio and its interval, for a table."""
    if triple is None:
        return ["-", "-"]
    ratio, low, high = map(harness.format_ratio, triple)
    return [ratio, f"{low}..{high}"]


def table(libraries, rows, bound=None):
    """The lines of the Markdown table of one place."""
    names = list(libraries)
    heads = ["size", *(f"{name} us" for name in names), "best peer", "ratio", "95 %", "busbw GB/s"]
    bounded = bound is not None or COPY in libraries
    heads += ["over the bound", "range"] if bounded else []
    lines = []
    for row in rows:
        times = [harness.format_us(row["times"].get(name)) for name in names]
        line = [harness.format_size(row["size"]), *times, row["best"] or "-"]
        line += [*_triple(row["ratio"]), f"{row['busbw']:.3g}"]
        lines.append(line + (_triple(row["over"]) if bounded else []))
    return harness.markdown_table(heads, lines)


def _lines_of(places, key):
    """-> {np: {verb: [(size, [low, ratio, high])]}} of those rows that have it"""
    lines = {}
    for (np, verb), rows in places.items():
        points = [
            (row["size"], [row[key][1], row[key][0], row[key][2]])
            for row in rows
            if row[key] and row["size"] > 0
        ]
        if points:
            lines.setdefault(np, {})[verb] = points
    return lines


def _ratio_pictures(rows):
    """-> {file name: SVG}, and the Markdown lines that show them, by np"""
    kinds = [
        ("ratio", "ratio", "time / the best peer's", "95 % interval"),
        ("bound", "over", "time / the bound's", "range of the rounds"),
    ]
    pictures, shown = {}, {}
    for word, key, what, bars in kinds:
        for np, lines in _lines_of(rows, key).items():
            name = f"compare-{word}-np{np}.svg"
            pictures[name] = plot.ratios_by_size(f"{what}, {np} ranks", lines, what, bars)
            shown.setdefault(np, []).append(f"![{what}, {np} ranks]({name})")
    return pictures, shown


def files(document):
    """The page of compare.json. -> {file name: text}, compare.md first"""
    bound = document.get("bound")
    places = by_place(document["cells"])
    rows = {place: rows_of(libraries, bound) for place, libraries in places.items()}
    pictures, shown = _ratio_pictures(rows)
    text = [
        "# horon beside its peers",
        "",
        f"{harness.describe(document['machine'])}.",
        f"float32, sums where there is a reduction; horon {document['path']}.",
        "Times are medians over rounds of medians, each call's the slowest rank's; busbw is as in",
        "nccl-tests; the ratio is horon's time over the best peer's.",
    ]
    if bound is not None:
        text.append(f"The bound is a busbw of {bound:g} GB/s.")
    elif any(COPY in libraries for libraries in places.values()):
        text.append("The bound is what copying the outputs takes, shared out among the cores.")
    for np in sorted({np for np, _ in places}):
        text += ["", f"## {np} ranks"]
        for line in shown.get(np, []):
            text += ["", line]
        for (place_np, verb), libraries in places.items():
            if place_np != np:
                continue
            text += ["", f"### {verb}, {np} ranks", ""]
            if max(libraries["horon"]) > 0:  # a barrier has no sizes to draw it over
                lines = {
                    name: [
                        (size, [c["time_us"] for c in cells]) for size, cells in sorted(of.items())
                    ]
                    for name, of in libraries.items()
                }
                picture = f"compare-{verb}-np{np}.svg"
                title = f"{verb}, {np} ranks on {document['machine']['cores']} cores"
                pictures[picture] = plot.times_by_size(title, lines)
                text += [f"![{title}]({picture})", ""]
            text += table(libraries, rows[np, verb], bound)
    return {"compare.md": "\n".join(text) + "\n", **pictures}
