# Copyright (c) 2026 PaddlePaddle Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report in a browser: charts, zoom, dark mode, nothing loaded."""

import json
import re
import shutil
import subprocess

import pytest
from adagc_lab.report.experiment import Experiment
from adagc_lab.report.html import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

ZOOM = """
<script>
const [first, second] = window.adagcPlots;
const before = first.scales.x.max;
const at = (type, part) => {
  const box = first.over.getBoundingClientRect();
  first.over.dispatchEvent(new MouseEvent(type, {
    bubbles: true, clientX: box.left + part * box.width,
    clientY: box.top + 0.5 * box.height, movementX: 5, movementY: 0,
  }));
};
const range = (plot) => [plot.scales.x.min, plot.scales.x.max];
setTimeout(() => {
  at("mousemove", 0.25); at("mousedown", 0.25);
  setTimeout(() => {
    at("mousemove", 0.5);
    setTimeout(() => {
      at("mouseup", 0.5);
      setTimeout(() => {
        const zoomed = [range(first), range(second)];
        at("dblclick", 0.5);
        setTimeout(() => {
          const node = document.createElement("pre");
          node.id = "seen";
          node.textContent = JSON.stringify({
            zoomed, reset: range(first),
            paper: getComputedStyle(document.body).backgroundColor,
            plots: window.adagcPlots.length,
            loaded: performance.getEntriesByType("resource")
              .filter((entry) => !entry.name.startsWith("data:")).length,
          });
          document.body.append(node);
        }, 100);
      }, 100);
    }, 100);
  }, 100);
}, 100);
</script></body>
"""


def open_page(page, tmp_path, *flags):
    """What the script in the page saw, and the console's lines."""
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu"),
        *("--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update"),
        *("--enable-logging=stderr", "--window-size=1100,1400"),
        f"--user-data-dir={tmp_path / 'profile'}",
        *("--virtual-time-budget=5000", "--dump-dom", *flags),
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    (seen,) = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(seen), console


@pytest.mark.parametrize(
    ("flags", "paper"),
    [([], "rgb(255, 255, 255)"), (["--force-dark-mode"], "rgb(13, 17, 23)")],
)
def test_zoom_and_colour_scheme(make_run, tmp_path, flags, paper):
    experiment = Experiment(
        title="Test",
        description="A test.",
        runs={m: [make_run(method=m)] for m in ("GlobalGC", "AdaGC")},
        windows=(100,),
    )
    page = write_report(tmp_path / "report.html", "T", [experiment])
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("</body>", ZOOM), encoding="utf-8")
    seen, console = open_page(page, tmp_path, *flags)
    assert console == []
    # The axis reaches from step 0 to 399: a quarter to a half of it.
    for low, high in seen["zoomed"]:
        assert low == pytest.approx(99.75, abs=3)
        assert high == pytest.approx(199.5, abs=3)
    assert seen["reset"] == [0, 399]
    assert seen["paper"] == paper
    assert seen["plots"] > 9
    assert seen["loaded"] == 0
