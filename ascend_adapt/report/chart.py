"""Charts: one metric of one or two runs as inline SVG, with a table of its values."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ascend_adapt.report.curves import Bucket, Curve, thinned
from ascend_adapt.report.elements import Markup, element, joined
from ascend_adapt.report.metrics import Metric
from ascend_adapt.report.scale import Scale, exact, short

_WIDTH, _HEIGHT = 400, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 12, 26
_MOST_POINTS = 240
_DOTS = 40
"""Maximum number of points that are also drawn as dots."""
_ROWS = 16
_SPOILED = 60


@dataclass(frozen=True)
class Line:
    """One curve of a chart. ``run`` is 0 or 1. ``label`` is "" for the only curve."""

    curve: Curve
    run: int = 0
    label: str = ""


def chart(metric: Metric, lines: Sequence[Line], key: str) -> Markup:
    """Return the figure of a metric. ``key`` makes the ids of its elements unique on the page."""
    axis = lines[0].curve.axis
    buckets = [thinned(line.curve, _MOST_POINTS) for line in lines]
    title = metric.title + (f" ({metric.unit})" if metric.unit else "")
    legend = [
        element("p", element("span", class_=f"key {_style(line, lines)}"), line.label, class_="legend")
        for line in lines
        if line.label
    ]
    return element(
        "figure",
        element("h3", title),
        element("p", *(_summary(metric, line, lines) for line in lines), class_="figures"),
        element("div", *legend, class_="legends") if legend else None,
        _svg(metric, lines, buckets, title, key),
        element("p", _comparison(lines), class_="note") if len({line.run for line in lines}) == 2 else None,
        *(element("p", note, class_="bad") for line in lines if (note := _spoiled(line))),
        element("details", element("summary", "Figures"), _table(lines, axis), class_="quiet"),
        id=key,
    )


def _style(line: Line, lines: Sequence[Line]) -> str:
    of_run = [one for one in lines if one.run == line.run]
    return f"run{line.run} dash{min(of_run.index(line), 3)}"


def _summary(metric: Metric, line: Line, lines: Sequence[Line]) -> Markup:
    values = line.curve.finite
    if not values:
        return Markup("")
    unit = f" {metric.unit}" if metric.unit else ""
    least, most = min(values, key=lambda one: one[1]), max(values, key=lambda one: one[1])
    last = element("b", short(values[-1][1]), class_=_style(line, lines))
    if len(lines) > 1:
        return element("span", last, f"{unit} last")
    spread = f"min {short(least[1])} at {_at(least[0])}, max {short(most[1])} at {_at(most[0])}"
    return joined(element("span", last, f"{unit} last"), element("span", spread))


def _svg(metric: Metric, lines: Sequence[Line], buckets: Sequence[Sequence[Bucket]], title: str, key: str) -> Markup:
    points = [bucket for of_line in buckets for bucket in of_line]
    if not points:
        return element("p", "no finite value", class_="note")
    axis = lines[0].curve.axis
    xs = [*(bucket.x for bucket in points), *(x for line in lines for x in (line.curve.x[0], line.curve.x[-1]))]
    ys = [value for bucket in points for value in (bucket.least, bucket.most)]
    across = Scale.of(xs, _LEFT, _WIDTH - _RIGHT)
    up = Scale.of(ys, _HEIGHT - _BOTTOM, _TOP, margin=0.06, may_be_log=metric.is_geometric)
    return element(
        "svg",
        element("title", title, id=f"{key}-title"),
        element("desc", "; ".join(_described(line) for line in lines), id=f"{key}-desc"),
        *_axes(across, up, axis),
        *(_line(line, of_line, lines, across, up) for line, of_line in zip(lines, buckets, strict=True)),
        *_marks(lines, across),
        element("line", class_="cursor", x1=0, x2=0, y1=_TOP, y2=_HEIGHT - _BOTTOM),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        data_axis=axis,
    )


def _described(line: Line) -> str:
    values, of_line = line.curve.finite, f"{line.label}: " if line.label else ""
    if not values:
        return f"{of_line}no finite value"
    (first, before), (last, after) = values[0], values[-1]
    return f"{of_line}from {short(before)} at {line.curve.axis} {_at(first)} to {short(after)} at {_at(last)}"


def _axes(across: Scale, up: Scale, axis: str) -> Iterable[Markup]:
    for value in up.ticks(5):
        y = round(up(value), 1)
        yield element("line", class_="grid", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y)
        yield element("text", short(value), x=_LEFT - 5, y=y + 4, text_anchor="end")
    ticks = across.ticks(5) if axis == "epoch" else [one for one in across.ticks(5) if one == int(one)]
    for value in ticks:
        x = round(across(value), 1)
        if x < _WIDTH - _RIGHT - 60:
            yield element("text", short(value), x=x, y=_HEIGHT - _BOTTOM + 16, text_anchor="middle")
        yield element("line", class_="tick", x1=x, x2=x, y1=_HEIGHT - _BOTTOM, y2=_HEIGHT - _BOTTOM + 4)
    yield element("text", axis, x=_WIDTH - _RIGHT, y=_HEIGHT - _BOTTOM + 16, text_anchor="end", class_="axis")
    yield element("line", class_="tick", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_HEIGHT - _BOTTOM, y2=_HEIGHT - _BOTTOM)


def _line(line: Line, buckets: Sequence[Bucket], lines: Sequence[Line], across: Scale, up: Scale) -> Markup:
    """Return the mean of each bucket as a line. If buckets hold several values, add minimum and maximum as a band."""
    path = [(round(across(one.x), 1), round(up(one.mean), 1)) for one in buckets]
    drawn = [element("polyline", points=" ".join(f"{x:g},{y:g}" for x, y in path), class_="curve")]
    if len(buckets) < len(line.curve.x):
        above = [f"{across(one.x):.1f},{up(one.most):.1f}" for one in buckets]
        below = [f"{across(one.x):.1f},{up(one.least):.1f}" for one in reversed(buckets)]
        drawn.insert(0, element("polygon", points=" ".join((*above, *below)), class_="band"))
    if len(path) <= _DOTS:
        drawn += [element("circle", cx=x, cy=y, r=2.5) for x, y in path]
    return element(
        "g",
        *drawn,
        class_=_style(line, lines),
        data_label=line.label or None,
        data_x=" ".join(f"{one.x:g}" if one.x < 1e6 else f"{one.x:.0f}" for one in buckets),
        data_y=" ".join(f"{one.mean:.5g}" for one in buckets),
    )


def _marks(lines: Sequence[Line], across: Scale) -> Iterable[Markup]:
    """Yield a mark at the top edge for each value that is NaN or Inf."""
    for line in lines:
        for x in line.curve.spoiled[:_SPOILED]:
            if across.least <= x <= across.most:
                at = across(x)
                triangle = f"{at - 4:.1f},{_TOP - 8} {at + 4:.1f},{_TOP - 8} {at:.1f},{_TOP}"
                yield element(
                    "polygon",
                    points=triangle,
                    class_="spoiled",
                )


def _spoiled(line: Line) -> str:
    spoiled = line.curve.spoiled
    if not spoiled:
        return ""
    listed = ", ".join(map(_at, spoiled[:5])) + (", ..." if len(spoiled) > 5 else "")
    of_run = f"{line.label}: " if line.label else ""
    return f"{of_run}NaN or Inf at {line.curve.axis} {listed} ({len(spoiled)} of {len(line.curve.x)} values)"


def _comparison(lines: Sequence[Line]) -> str:
    """Return how much the two runs differ at the points where both have a value."""
    pairs = [(one, other) for one in lines for other in lines if (one.run, other.run) == (0, 1)]
    first, second = next((pair for pair in pairs if pair[0].curve.variant == pair[1].curve.variant), pairs[0])
    mine, theirs = dict(first.curve.finite), dict(second.curve.finite)
    common = sorted(mine.keys() & theirs.keys())
    if first.curve.axis != second.curve.axis or not common:
        return "no common iteration to compare"
    differences = {x: abs(theirs[x] - mine[x]) / max(abs(mine[x]), abs(theirs[x]), 1e-30) for x in common}
    at = max(common, key=lambda x: differences[x])
    axis = first.curve.axis
    if not differences[at]:
        return f"equal in every printed digit at {len(common)} common {axis}s"
    return f"largest relative difference {differences[at]:.2g} at {axis} {_at(at)}, of {len(common)} common {axis}s"


def _table(lines: Sequence[Line], axis: str) -> Markup:
    longest = max((line.curve for line in lines), key=lambda curve: len(curve.x)).x
    count = min(_ROWS, len(longest))
    rows = [longest[(number * (len(longest) - 1)) // max(count - 1, 1)] for number in range(count)]
    heads = [line.label or "value" for line in lines]
    return element(
        "table",
        element("thead", element("tr", *(element("th", head, scope="col") for head in (axis, *heads)))),
        element(
            "tbody",
            *(
                element("tr", element("td", _at(x)), *(element("td", _value_at(line.curve, x)) for line in lines))
                for x in dict.fromkeys(rows)
            ),
        ),
        class_="numbers",
    )


def _value_at(curve: Curve, x: float) -> str:
    index = bisect_left(curve.x, x)
    there = index < len(curve.x) and curve.x[index] == x
    return (exact(curve.y[index]) if math.isfinite(curve.y[index]) else str(curve.y[index])) if there else ""


def _at(x: float) -> str:
    return f"{x:.0f}" if x == int(x) else f"{x:.4g}"
