# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: drawn without errors, in light and dark, on a desk and a phone.

Screenshots stay in build/report-screenshots, to be looked at.
"""

import re

import pytest

import harness

cli = pytest.importorskip(
    "cadenza.cli", reason="the package analysis/ is not installed here", exc_type=ImportError
)
SCREENSHOTS = harness.ROOT / "build/report-screenshots"
# What sticks out of the page to the right, but for what scrolls by itself.
WIDER = """[...document.querySelectorAll('main *, header *')]
    .filter(e => !e.closest('.scroll, nav, .plot')
                 && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40))"""
# How many points of a finished picture are coloured, as bars, lines and cells are and axes are not.
DRAWN = """plot => {
    if (!plot.view?.has_finished()) return 0;
    const {canvas} = plot.view.canvas.primary, {bbox} = plot.view.frame, scale = devicePixelRatio;
    const {data} = canvas.getContext('2d').getImageData(
        bbox.left * scale, bbox.top * scale, bbox.width * scale, bbox.height * scale);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) {
        const [red, green, blue, opaque] = data.subarray(i, i + 4);
        if (opaque > 99 && Math.max(red, green, blue) - Math.min(red, green, blue) > 24) count++;
    }
    return count;
}"""


@pytest.fixture(scope="module")
def pages(corpus, tmp_path_factory):
    """Of two real runs, and of a simulated one with a pipeline."""
    folder = tmp_path_factory.mktemp("runs")
    changes = {"data": harness.tokens_data(corpus), "run": {"steps": 4},
               "batch": {"tokens": 1024, "microbatch": 256}}
    runs = []
    for placement in ("colocated", "cad"):
        experiment = harness.merged(
            changes, {"parallel": {"data": 2}, "attention": {"placement": placement}}
        )
        runs.append(harness.train(folder / placement, experiment).folder)
    experiment = harness.write_experiment(
        folder / "simulated.yaml", harness.merged(changes, {"parallel": {"data": 2, "pipeline": 2}})
    )
    harness.run_well(1, ["simulate", experiment, "--trace", "full", "--output", folder / "sim"])
    arguments = {"real": runs, "simulated": [folder / "sim"]}
    for name, shown in arguments.items():
        words = ["report", *shown, "--output", folder / f"{name}.html"]
        assert cli.main([str(word) for word in words]) == 0
    return {name: folder / f"{name}.html" for name in arguments}


def opened(browser, path, scheme, width):
    """The page, scrolled through so that everything is drawn, and what the browser complained."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme,
                                  has_touch=width < 500, offline=True)
    context.set_default_timeout(harness.TIMEOUT * 1e3)
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text)
            if message.type in ("error", "warning") else None)
    page.goto(path.as_uri())
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        page.wait_for_function(f"plot => ({DRAWN})(plot) > 20", arg=plot.element_handle())
    return page, complaints


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("real", "light", 1280),
        ("real", "light", 390),
        ("real", "dark", 1280),
        ("real", "dark", 390),
        ("simulated", "light", 1280),
        ("simulated", "dark", 390),
    ],
)
def test_report_in_a_browser(browser, pages, name, scheme, width):
    page, complaints = opened(browser, pages[name], scheme, width)
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}-{width}.png", full_page=True)
    assert complaints == []
    assert page.evaluate(WIDER) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator(".plot").count() >= 8
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in paper.strip("rgb()").split(",")) > 3 * 128
    assert light == (scheme == "light")
    ink = page.evaluate("document.querySelector('.plot').view.model.below[0].axis_label_text_color")
    assert (sum(bytes.fromhex(ink.strip("#"))) > 3 * 128) == (not light)
    page.context.close()


def test_a_heat_map_changes_with_its_choice(browser, pages):
    page, complaints = opened(browser, pages["real"], "light", 1280)
    card = page.locator("#heat .card").first
    shown = "card => card.querySelector('.plot').view.model.renderers[0].name"
    assert card.evaluate(shown) == "computing"
    card.locator("select").select_option("step time")
    page.wait_for_function(f"card => ({shown})(card) === 'step time'", arg=card.element_handle())
    assert complaints == []
    page.context.close()


def test_dragging_over_the_timeline_zooms_in(browser, pages):
    page, complaints = opened(browser, pages["real"], "light", 1280)
    plot = page.locator("#timeline .plot").first
    plot.scroll_into_view_if_needed()
    length = "plot => plot.view.model.x_range.end - plot.view.model.x_range.start"
    before = plot.evaluate(length)
    box = plot.bounding_box()
    frame = plot.evaluate("({view}) => [view.frame.bbox.left, view.frame.bbox.width]")
    middle = box["y"] + box["height"] / 3
    page.mouse.move(box["x"] + frame[0] + 0.3 * frame[1], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + frame[0] + 0.5 * frame[1], middle, steps=5)
    page.mouse.up()
    page.wait_for_function(
        f"before => ({length})(document.querySelector('#timeline .plot')) < before", arg=before
    )
    assert plot.evaluate(length) == pytest.approx(0.2 * before, rel=0.05)
    page.mouse.dblclick(box["x"] + frame[0] + 0.4 * frame[1], middle)
    assert plot.evaluate(length) == pytest.approx(before)
    assert complaints == []
    page.context.close()


def test_a_pointer_shows_numbers_with_units(browser, pages):
    page, complaints = opened(browser, pages["real"], "light", 1280)
    plot = page.locator("#time .plot").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    frame = plot.evaluate("({view}) => [view.frame.bbox.left, view.frame.bbox.height]")
    page.mouse.move(box["x"] + frame[0] + 9, box["y"] + 0.3 * frame[1])
    tip = page.locator(".bk-Tooltip").first
    tip.wait_for()
    assert re.search(r"rank 0\s*core attention [0-9.]+ [mu]?s, [0-9.]+%", tip.inner_text())
    assert complaints == []
    page.context.close()
