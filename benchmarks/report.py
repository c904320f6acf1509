"""What the page of a run costs: `python -m benchmarks.report`, on the zoo, in a Chromium that must be installed.

Seconds that `ortopt optimize --html` spends on the page, its size, and how long the browser takes from the start of its
navigation until the page can be used; then until the drawing after a click on a folded group is done.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chromium import Chromium, find
from benchmarks.tables import markdown, number
from ortopt import Lineage, optimize, zoo
from ortopt.reporting.page.pages import write_page

_UNFOLD = """(() => {
    const group = document.querySelector('.item.group');
    if (!group) return 0;
    const start = performance.now();
    group.dispatchEvent(new MouseEvent('click', { bubbles: true }));
    document.body.getBoundingClientRect();
    return (performance.now() - start) / 1000;
})()"""


def main() -> None:
    """Read the command line, measure, print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(zoo.names()), help="names of zoo models, with commas")
    parser.add_argument("--repeat", type=int, default=5, help="how often each page is opened; medians count")
    options = parser.parse_args()
    path = find()
    if path is None:
        raise SystemExit("there is no Chromium here (ORTOPT_CHROMIUM names one)")
    browser = Chromium(path)
    try:
        with tempfile.TemporaryDirectory(prefix="ortopt-bench-") as folder:
            page = Path(folder, "page.html")
            lines = [_line(name, page, browser, options.repeat) for name in options.models.split(",")]
    finally:
        browser.close()
    print(markdown(["model", "nodes", "left", "page, MB", "written in, s", "ready in, s", "unfolded in, s"], lines))


def _line(name: str, page: Path, browser: Chromium, repeat: int) -> list[str]:
    print(name, file=sys.stderr, flush=True)
    result = optimize(zoo.cached(name), observers=[Lineage()], verify=False)
    started = time.perf_counter()
    write_page(result, page, name)
    written = time.perf_counter() - started
    ready, unfolded = [], []
    for _ in range(repeat):
        ready.append(browser.open(page))
        unfolded.append(float(browser.run(_UNFOLD)))
    if browser.problems:
        raise SystemExit(f"{name}: {browser.problems[0]}")
    sizes = [str(result.summary.before.nodes), str(result.summary.after.nodes), number(page.stat().st_size / 1e6)]
    return [name, *sizes, *map(number, (written, statistics.median(ready), statistics.median(unfolded)))]


if __name__ == "__main__":
    main()
