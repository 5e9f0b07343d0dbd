# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: drawn without errors, in light and dark, on a desk and a phone.

Screenshots stay in build/report-screenshots, to be looked at.
"""

import re
import resource

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
    """Of two real runs, of a simulated one with a pipeline, and of twenty."""
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
    many = [folder / f"many/{number}" for number in range(20)]
    for number, run in enumerate(many):
        harness.run_well(1, ["simulate", experiment, "--trace", "full", "--output", run, "--set",
                             "run.steps=2", "--set", f"seed={number + 1}"])
    arguments = {"real": runs, "simulated": [folder / "sim"], "many": many}
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


def frame_of(plot):
    """Where a picture's marks are on the page, once it is in sight: left, top, width, height."""
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    left, top, width, height = plot.evaluate(
        "({view: {frame: {bbox}}}) => [bbox.left, bbox.top, bbox.width, bbox.height]")
    return box["x"] + left, box["y"] + top, width, height


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("real", "light", 1400),
        ("real", "light", 390),
        ("real", "dark", 1400),
        ("real", "dark", 390),
        ("simulated", "light", 1400),
        ("simulated", "dark", 390),
        ("many", "light", 1400),
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
    assert page.evaluate("document.documentElement.scrollHeight") < (30_000, 20_000)[width > 500]
    assert page.locator("#old").is_hidden()
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
    left, top, width, height = frame_of(plot)
    length = "plot => plot.view.model.x_range.end - plot.view.model.x_range.start"
    before = plot.evaluate(length)
    middle = top + height / 3
    page.mouse.move(left + 0.3 * width, middle)
    page.mouse.down()
    page.mouse.move(left + 0.5 * width, middle, steps=5)
    page.mouse.up()
    page.wait_for_function(
        f"before => ({length})(document.querySelector('#timeline .plot')) < before", arg=before
    )
    assert plot.evaluate(length) == pytest.approx(0.2 * before, rel=0.05)
    page.mouse.dblclick(left + 0.4 * width, middle)
    assert plot.evaluate(length) == pytest.approx(before)
    assert complaints == []
    page.context.close()


def test_a_pointer_shows_numbers_with_units(browser, pages):
    page, complaints = opened(browser, pages["real"], "light", 1280)
    plot = page.locator("#time .plot").first
    left, top, _, height = frame_of(plot)
    page.mouse.move(left + 9, top + 0.3 * height)
    tip = page.locator(".bk-Tooltip").first
    tip.wait_for()
    text = tip.evaluate("tip => tip.shadowRoot.querySelector('.bk-tooltip-content').textContent")
    assert re.fullmatch(r"rank 0 · .+ · data 0core attention [0-9.]+ [mun]?s, [0-9.]+%", text)
    assert complaints == []
    page.context.close()


def test_the_tree_unfolds_and_sums(browser, pages):
    """Of each metric the ranks sum to the job, and the lanes of a rank to the rank."""
    page, complaints = opened(browser, pages["simulated"], "light", 390)
    card = page.locator("#system .card").first
    rows = """card => [...card.querySelectorAll('tbody tr')]
        .map(tr => [tr.dataset.path, +tr.dataset.sum])"""
    assert len(card.evaluate(rows)) == 6  # the job, its only node and four ranks
    folded = card.locator("button[aria-expanded=false]")
    assert folded.count() == 4
    for _ in range(4):
        folded.first.click()
    metrics = card.locator("option").all_inner_texts()
    assert {"computing", "pipeline bubble", "bytes sent", "highest memory"} <= {*metrics}
    for metric in metrics:
        card.locator("select").select_option(metric)
        sums = dict(card.evaluate(rows))
        below = {path: [sums[one] for one in sums if one.rpartition("/")[0] == path]
                 for path in sums}
        whole = next(iter(sums))
        assert sums[whole] > 0 and len(below[whole]) == 1
        for path, parts in below.items():
            assert not parts or sum(parts) == pytest.approx(sums[path], rel=1e-9), (metric, path)
        assert sum(path.count("/") == 2 for path in sums) == 4  # ranks
    assert complaints == []
    page.context.close()


def test_many_runs_are_one_table(browser, pages):
    page, complaints = opened(browser, pages["many"], "light", 1400)
    table = page.locator("#ranking table")
    assert table.locator("tbody tr").count() == 20
    assert page.locator("#time .plot").count() <= 3
    assert complaints == []
    page.context.close()


def test_pictures_out_of_sight_are_drawn_for_print(browser, pages):
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    context.set_default_timeout(harness.TIMEOUT * 1e3)
    page = context.new_page()
    page.goto(pages["simulated"].as_uri())
    page.wait_for_function("[...document.querySelectorAll('.plot')].every(plot => plot.view)")
    context.close()


def test_pictures_follow_the_theme(browser, pages):
    page, complaints = opened(browser, pages["simulated"], "light", 1400)
    ink = "document.querySelector('.plot').view.model.below[0].axis_label_text_color"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => {ink} !== light", arg=light)
    assert complaints == []
    page.context.close()


def test_an_old_browser_says_what_it_lacks(browser, pages):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(pages["simulated"].as_uri())
    page.locator("#old").wait_for()
    assert "DecompressionStream" in page.locator("#old").inner_text()
    context.close()


def test_sizes_of_pages(pages):
    assert {name: path.stat().st_size < 1.0e6 for name, path in pages.items()} == \
        dict.fromkeys(pages, True)


def test_a_page_of_256_ranks_is_small_and_soon_there(tmp_path):
    """Processor time, as whatever else runs here does not take part in it."""
    harness.run_well(1, ["simulate", harness.ROOT / "inputs/placements/cad.yaml", "--steps", "5",
                         "--trace", "full", "--output", tmp_path / "run", "--set",
                         "parallel.data=256", "--set", "batch.tokens=1048576"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    harness.analyze("report", tmp_path / "run", "--output", tmp_path / "r.html")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (tmp_path / "r.html").stat().st_size <= 1.5e6
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 40
