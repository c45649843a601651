"""Takes the README's screenshot: ``python -m benchmarks.screenshot RUN docs/report.png``.

Renders the page of a run, leaves the verdict, the readiness matrix and the pictures of a step, and writes a PNG of 64
colours. Needs Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from ddaudit.record import load_record
from ddaudit.report import render
from tests.report.browser import Browser, chromium

WIDTH, HEIGHT, ROWS = 1180, 1320, 10
SHORTEN = """(() => {
  const kept = ['#ready', '#area-compute'];
  document.querySelectorAll('main > section').forEach(s => { if (!kept.some(k => s.querySelector(k))) s.remove(); });
  document.querySelectorAll('#ready ~ div tbody tr').forEach((row, i) => { if (i >= ROWS) row.remove(); });
  document.querySelectorAll('details').forEach(d => d.remove());
  document.querySelectorAll('.scroll').forEach(d => { d.style.overflow = 'hidden'; });
})()"""


def take(run: Path, target: Path) -> None:
    """Writes ``target``. The page names the run as a user of the default ``--out`` sees it."""
    path = chromium()
    assert path, "needs Chromium"
    record = load_record(run)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(render(record, "html", run_dir=Path("ddaudit-runs") / record.run_id), encoding="utf-8")
        browser = Browser(path, Path(folder) / "profile")
        browser.call("Emulation.setScrollbarsHidden", hidden=True)
        browser.open(page, WIDTH, "light")
        browser.evaluate(SHORTEN.replace("ROWS", str(ROWS)))
        browser.call(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False
        )
        browser.screenshot(Path(folder) / "shot.png")
        browser.close()
        colours = Image.open(Path(folder) / "shot.png").convert("RGB")
        colours.quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
