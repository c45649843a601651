"""Pages as readers meet them: in a browser, on a phone and on a wall, by day and by night, with a screen reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddaudit.report import render
from tests.report import records
from tests.report.browser import Browser, axe_source, chromium
from tests.report.exhibited import checkpointed, drawn, triaged, walked

PAGES = {
    "healthy": lambda: drawn(records.healthy()),
    "failed": lambda: drawn(records.failed()),
    "triage": triaged,
    "walk": walked,
    "audit": checkpointed,
    "hostile": records.hostile,
}
WIDTHS = (420, 1180, 2560)
#: axe's colour and structure rules answer the same at every width; it runs once a scheme and page.
AXE = """axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify(
  r.violations.map(v => [v.id, v.impact, v.nodes.slice(0, 3).map(n => n.html)])))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("chromium is not installed")
    found = Browser(path, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, record in PAGES.items():
        (folder / f"{name}.html").write_text(
            render(record(), "html", run_dir=Path("/runs/1129-1402")), encoding="utf-8"
        )
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_every_screen_in_silence(browser: Browser, pages: dict[str, Path], name: str) -> None:
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            browser.open(pages[name], width, scheme)
            wide = browser.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{scheme} {width}: {wide} px wide"
            assert browser.evaluate(SPILLED) == [], f"{scheme} {width}"
            assert browser.complaints() == [] and browser.requests() == []


#: Elements that stick out of the window and are in no box that scrolls, and text of pictures outside its picture.
SPILLED = """(() => {
  const width = document.documentElement.clientWidth;
  const out = e => { const r = e.getBoundingClientRect(); return r.width && (r.right > width + 1 || r.left < -1); };
  const boxed = e => e.closest('.scroll') || e.classList.contains('skip') || e.closest('table.stack thead');
  const wide = [...document.querySelectorAll('body *')].filter(e => out(e) && !boxed(e)).map(e => e.outerHTML);
  const cut = [...document.querySelectorAll('svg.picture text')].filter(t => {
    const p = t.closest('svg').getBoundingClientRect(), r = t.getBoundingClientRect();
    return r.left < p.left - 2 || r.right > p.right + 2 || r.top < p.top - 2 || r.bottom > p.bottom + 2;
  }).map(t => t.textContent);
  return [...wide, ...cut].slice(0, 5).map(s => s.slice(0, 200));
})()"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_serious_accessibility_violation(browser: Browser, pages: dict[str, Path], name: str) -> None:
    axe = axe_source()
    if axe is None:
        pytest.skip("axe-core is not installed (npm install -g axe-core)")
    for scheme in ("light", "dark") if name == "failed" else ("light",):
        browser.open(pages[name], 1180, scheme)
        browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        browser.evaluate(axe)
        found = json.loads(browser.evaluate(AXE))
        assert [v for v in found if v[1] in ("serious", "critical")] == [], scheme


BAD = """<!doctype html><html><head><title>bad</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src http:"></head><body>
<p><font color="#cccccc">pale</font></p><img src="http://127.0.0.1:9/x.png"><script>1</script>
<table width="3000"><tr><td>wide</td></tr></table></body></html>"""


def test_a_bad_page_is_told_from_a_good_one(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(BAD)
    browser.open(page, 420, "light")
    assert browser.evaluate("document.documentElement.scrollWidth") > 420 and browser.evaluate(SPILLED)
    assert browser.requests() and browser.complaints()
    if axe := axe_source():
        browser.evaluate(axe)
        assert {"color-contrast", "image-alt", "html-has-lang"} <= {v[0] for v in json.loads(browser.evaluate(AXE))}
