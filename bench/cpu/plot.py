#!/usr/bin/env python3
"""Draws the curves of results files of table.py as an SVG: ns per token-head over the length of the sequence."""

import argparse
import json
import math
import pathlib
import sys

COLOURS = {"ggml": "#8a8a8a", "baseline": "#b07aa1", "avx2": "#e8a33d", "avx512": "#2f6fb2", "AMX bf16x3": "#3a9a5c",
           "AMX bf16": "#c8483b"}
WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 140, 66, 55


def curves_of(file):
    curves = {}
    data = json.loads(pathlib.Path(file).read_text())
    for row in data["measurements"]:
        label = row.get("label", "")
        if label.startswith("curve "):
            tokens = 1 if row["direction"] == "step" else row["t"]
            curves.setdefault(label[len("curve "):], {})[tokens] = row["ns_per_token_head"]
    return data, {name: sorted(points.items()) for name, points in curves.items()}


def drawing(files, title):
    sources = [curves_of(file) for file in files]
    lines = []  # name, machine, points, dashed
    for index, (data, curves) in enumerate(sources):
        for name in COLOURS:
            if name in curves:
                lines.append((name, index, curves[name]))
    if not lines:
        raise SystemExit("plot.py: no curves in these files (run table.py --rows 'curve-*')")
    tokens = [x for _, _, points in lines for x, _ in points]
    values = [y for _, _, points in lines for _, y in points]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    first, last = math.log2(min(tokens)), math.log2(max(tokens))

    def x_of(value):
        return LEFT + (math.log2(value) - first) / max(last - first, 1) * (WIDTH - LEFT - RIGHT)

    def y_of(value):
        share = (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="24" font-size="15">{title}</text>']
    for index, (data, _) in enumerate(sources):
        style = ("solid: " if index == 0 else "dashed: ") if len(sources) > 1 else ""
        text = f"{style}{data['cpu']['model']}, {data['date']}, commit {data['commit']}"
        out.append(f'<text x="{LEFT}" y="{40 + 14 * index}" font-size="11" fill="#666">{text}</text>')
    for decade in range(int(math.log10(low)), int(math.log10(high)) + 1):
        for digit in (1, 2, 5):
            value = digit * 10 ** decade
            if not low <= value <= high:
                continue
            y = y_of(value)
            out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e4e4e4"/>')
            out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>')
    for value in sorted(set(tokens)):
        x = x_of(value)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#f0f0f0"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}" text-anchor="middle">tokens of the '
               'sequence</text>')
    out.append(f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
               'ns per token-head</text>')
    labels = []
    for name, index, points in lines:
        colour = COLOURS[name]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if index else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        out += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>' for x, y in points]
        labels.append([y_of(points[-1][1]), f"{name}, {points[-1][1]:,.0f}", colour])
    labels.sort()
    for above, here in zip(labels, labels[1:]):
        here[0] = max(here[0], above[0] + 15)
    out += [f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4:.1f}" fill="{colour}">{text}</text>'
            for y, text, colour in labels]
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", help="results of table.py; curves of the second and later are dashed")
    parser.add_argument("--title", default="Gated delta rule forward, one thread, 32 heads, d = 128")
    parser.add_argument("--out", required=True, help="the SVG")
    options = parser.parse_args()
    try:
        picture = drawing(options.files, options.title)
    except (OSError, ValueError, KeyError, TypeError) as reason:
        print(f"plot.py: not results of table.py: {' '.join(options.files)}: {reason!r}", file=sys.stderr)
        return 2
    pathlib.Path(options.out).write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
