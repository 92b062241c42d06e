"""`make screenshots`: runs jobs, and makes pictures of their reports and terminal output.

Playwright opens the reports in the installed Chromium, at phone and desktop width, light and dark, and writes PNG files
to build/screenshots. rich writes the output of commands to the same folder as SVG files; files that documents show are
copied to docs/pictures.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
INTO = ROOT / "build" / "screenshots"
RUNS = INTO / "runs"
PROGRAMS = Path(sys.executable).parent
COLUMNS = 110
SHOWN_IN_DOCS = ("demo", "status-failed")
SIZES = {"phone": (390, 844), "desk": (1280, 900)}

JOBS = {
    "adapted": "ascend-run --device cpu --nproc 2 --log-dir {} examples/own_script/train.py --tiny",
    "emulated": "ascend-run --device npu-emulated --nproc 2 --log-dir {} examples/own_script/train.py --tiny",
    "failed": "ascend-run --device cpu --nproc 2 --log-dir {} examples/own_script/train.py --text missing.txt",
    "hugging-face": "ascend-run --device cpu --nproc 2 --log-dir {} examples/trainer/train.py --tiny",
    "native": "bash examples/megatron_gpt2_345M/345M.sh --tiny --log-dir {}",
}
REPORTS = {**{name: [name] for name in JOBS}, "compared": ["adapted", "emulated"]}


def main() -> None:
    """Run the jobs, and write all pictures."""
    shutil.rmtree(INTO, ignore_errors=True)
    RUNS.mkdir(parents=True)
    for name, command in JOBS.items():
        run(command.format(RUNS / name))
    terminal("demo", "python examples/demo.py", after="Verdict")
    terminal("doctor", "ascend-adapt doctor")
    terminal("status", "ascend-adapt status --short runs/demo/npu-emulated")
    terminal("status-failed", f"ascend-adapt status --short {RUNS / 'failed'}")
    terminal("help", "ascend-run --help")
    for name in SHOWN_IN_DOCS:
        shutil.copy(INTO / f"{name}.svg", ROOT / "docs" / "pictures" / f"{name}.svg")
    pages = []
    for name, runs in REPORTS.items():
        pages.append(INTO / f"{name}.html")
        run(f"ascend-adapt report {' '.join(str(RUNS / one) for one in runs)} --output {pages[-1]}")
    photograph([*pages, *RUNS.glob("emulated/rehearsal.html")])


def run(command: str) -> str:
    """Run a command as on a terminal of COLUMNS columns; return its output, including colours."""
    print(f"$ {command}", flush=True)
    environment = {
        **os.environ,
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "FORCE_COLOR": "1",
        "COLUMNS": str(COLUMNS),
    }
    done = subprocess.run(command.split(), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace").replace(f"{RUNS}/", "runs/").replace(f"{ROOT}/", "")


def terminal(name: str, command: str, after: str = "") -> None:
    """Write the output of a command as SVG, from the line that starts with ``after``."""
    printed = run(command)
    shown = printed[max(printed.find(after), 0) :].strip()
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    words = command.replace(f"{RUNS}/", "runs/").replace("python examples/demo.py", "make demo")
    console.print(Text(f"$ {words}"), Text.from_ansi(f"...\n{shown}" if after else shown), sep="\n")
    svg = console.export_svg(title=words, theme=MONOKAI, unique_id=name)
    # rich's fonts are on a third-party host; the reader's monospace font is sufficient.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    (INTO / f"{name}.svg").write_text(svg, encoding="utf-8")


def photograph(pages: list[Path]) -> None:
    """Write each page as PNG files, at every size, light and dark."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size, (width, height) in SIZES.items():
            for scheme in ("light", "dark"):
                view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                for path in pages:
                    view.goto(path.as_uri())
                    view.screenshot(path=INTO / f"{path.stem}-{size}-{scheme}.png", full_page=True)
                    wider = view.evaluate("document.documentElement.scrollWidth - window.innerWidth")
                    if wider > 0:
                        print(f"{path.name} at {size}: is {wider} px wider than the screen")
        browser.close()


if __name__ == "__main__":
    main()
