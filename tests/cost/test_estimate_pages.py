"""The same answer as a page, as Markdown, as a drawing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from alula.cost.answer import Asked, answer, answer_claims
from alula.cost.telling.document import Bar, Bars, Chart, Document, Mark, Segment, Table, ticks
from alula.cost.telling.pages import html, markdown
from alula.cost.telling.svg import bars_svg, chart_svg
from alula.machine.whatif import WhatIf

CASE = Path(__file__).parents[2] / "docs/examples/claims-pcie8.toml"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(params=["estimate", "claims"])
def document(request: pytest.FixtureRequest) -> Document:
    if request.param == "claims":
        return answer_claims(CASE)
    what_if = WhatIf("8x-rtx-pro-6000")
    return answer(Asked("kimi-k2.5", what_if, acceptance=(0.6, 0.5, 0.4)))


def test_the_verdict_comes_first_everywhere(document: Document) -> None:
    assert markdown(document).startswith(f"**{document.verdict}**")
    assert html(document).index("<h1>") < html(document).index("<h2>")


def test_the_page_fetches_nothing(document: Document) -> None:
    page = html(document)
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", page)
    assert page.count("<svg") == sum(not isinstance(b, Table) for b in document.blocks)


def test_what_is_drawn_is_well_formed(document: Document) -> None:
    for block in document.blocks:
        if isinstance(block, Bars):
            assert ElementTree.fromstring(bars_svg(block)).tag == f"{SVG}svg"
        elif isinstance(block, Chart):
            assert ElementTree.fromstring(chart_svg(block)).tag == f"{SVG}svg"


def test_bars_are_as_long_as_their_times() -> None:
    bars = Bars("times", (Bar("one", (Segment("a", 1.0), Segment("b", 3.0))),))
    drawn = ElementTree.fromstring(bars_svg(bars)).findall(f"{SVG}rect")
    widths = [float(rect.attrib["width"]) for rect in drawn if rect.find(f"{SVG}title") is not None]
    assert widths[1] == pytest.approx(3 * widths[0], rel=1e-2)


def test_a_setting_that_pays_lies_above_the_line_of_plain_decoding() -> None:
    chart = Chart("even", 100.0, (Mark("pays", 20.0, 2.5), Mark("loses", 20.0, 1.5)))
    drawn = ElementTree.fromstring(chart_svg(chart))
    pays, loses = drawn.findall(f"{SVG}circle")
    lines = drawn.findall(f"{SVG}line")
    bold = next(line for line in lines if "stroke-width" in line.attrib)
    x0, y0, x1, y1 = (float(bold.attrib[key]) for key in ("x1", "y1", "x2", "y2"))
    at = y0 + (y1 - y0) * (float(pays.attrib["cx"]) - x0) / (x1 - x0)
    assert float(pays.attrib["cy"]) < at < float(loses.attrib["cy"])


def test_names_are_escaped() -> None:
    table = Table("<b>", ("|",), (("<i>|",),))
    page = html(Document("a < b & c", (table,), ("<u>",)))
    assert "<b>" not in page
    assert "<i>" not in page
    assert "a &lt; b &amp; c" in page
    assert "<i>\\|" in markdown(Document("it", (table,), ()))


@pytest.mark.parametrize("most", [0.3, 1.0, 3.7, 22.9, 40.0, 999.0])
def test_ticks_are_few_and_round(most: float) -> None:
    found = ticks(most)
    assert 3 <= len(found) <= 7
    assert found[0] == 0
    assert found[-1] <= most < found[-1] + found[1] * 1.001


@pytest.mark.parametrize(("context", "told"), [(1024, False), (131_072, True)])
def test_long_contexts_are_told_to_cost_more(context: int, told: bool) -> None:
    notes = answer(Asked("kimi-k2.5", WhatIf("8x-rtx-pro-6000"), context=context)).notes
    assert any("24 % at 128k" in note for note in notes) == told
