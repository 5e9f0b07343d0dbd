# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: drawn without errors, in light and dark, on a desk and a phone.

Screenshots stay in build/report-screenshots, to be looked at.
"""

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
# A picture is drawn when its bars, lines or cells are there, not only its axes.
DRAWN = """plot => plot.querySelectorAll(
    '.barlayer path, .scatterlayer path, .heatmaplayer image').length"""


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
        page.wait_for_function(f"plot => ({DRAWN})(plot) > 0", arg=plot.element_handle())
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
    ink = page.evaluate("document.querySelector('.plot .xtick text').style.fill")
    assert (sum(int(part) for part in ink.strip("rgb()").split(",")) > 3 * 128) == (not light)
    page.context.close()


def test_a_heat_map_changes_with_its_choice(browser, pages):
    page, complaints = opened(browser, pages["real"], "light", 1280)
    card = page.locator("#heat .card").first
    shown = "card => card.querySelector('.plot').data[0].name"
    assert card.evaluate(shown) == "computing"
    card.locator("select").select_option("step time")
    assert card.evaluate(shown) == "step time"
    assert complaints == []
    page.context.close()


def test_dragging_over_the_timeline_zooms_in(browser, pages):
    page, complaints = opened(browser, pages["real"], "light", 1280)
    plot = page.locator("#timeline .plot").first
    plot.scroll_into_view_if_needed()
    length = "plot => plot._fullLayout.xaxis.range[1] - plot._fullLayout.xaxis.range[0]"
    before = plot.evaluate(length)
    box = plot.locator(".draglayer .nsewdrag").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], middle, steps=5)
    page.mouse.up()
    page.wait_for_function(
        f"before => ({length})(document.querySelector('#timeline .plot')) < before", arg=before
    )
    assert plot.evaluate(length) == pytest.approx(0.2 * before, rel=0.05)
    assert complaints == []
    page.context.close()
