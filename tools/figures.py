"""python tools/figures.py [NAME...]: the pictures of Concepts, the gallery and the tutorial, into docs/images.

A picture of the gallery is made by the lines that stand below it there: they run in a folder of their own. Screenshots
of a page are taken by Debian's chromium, those of a view by Rerun's own viewer, without a window; that needs a driver
of a GPU, or Mesa's lavapipe (mesa-vulkan-drivers).
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import robocache as rc

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
GALLERY = ROOT / "docs" / "gallery.md"
MOST = 150_000  # bytes of a picture
VIEWER = (1200, 760)  # pixels of the viewer's window
BAR = 37  # of these, from above: the viewer's menu, which is cut off
PLOTS = (720, 566)  # of these, behind the menu: the bands and plots of the tutorial's view
PATIENCE = 120.0  # seconds
BLUE, ORANGE, GREY, INK = "#0072B2", "#D55E00", "#999999", "#222222"  # Okabe and Ito


def curve(seconds: Any) -> Any:
    return np.sin(2.2 * seconds) + 0.3 * np.sin(7 * seconds)


def axes_of(figure: Figure) -> Any:
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.set_xlabel("seconds", fontsize=9)
    return axes


def save(figure: Figure, name: str) -> None:
    figure.tight_layout()
    FigureCanvasAgg(figure).print_png(IMAGES / name, metadata={"Software": None})


def gaps() -> None:
    """A stream with a pause of a second, aligned at 20 Hz with max_gap=0.3."""
    seconds = np.concatenate([np.arange(0, 1.5, 0.1), np.arange(2.5, 4, 0.1)])
    stream = rc.Stream(curve(seconds), np.rint(seconds * 1e9).astype(np.int64), max_gap=0.3)
    at = np.arange(0, 4.4, 0.05)
    found = rc.align([stream], np.rint(at * 1e9).astype(np.int64))[0]
    figure = Figure(figsize=(8, 3), dpi=110)
    axes = axes_of(figure)
    axes.plot(seconds, stream.values, "o", color=GREY, markersize=7, label="samples")
    axes.plot(at[found.valid], found.values[found.valid], ".", color=BLUE, markersize=5, label="aligned, valid")
    wrong = ~found.valid
    axes.plot(
        at[wrong], found.values[wrong], "x", color=ORANGE, markersize=5, label='aligned, not valid (edge="clamp")'
    )
    axes.legend(fontsize=8.5, frameon=False, loc="lower left", ncols=3, bbox_to_anchor=(0, 1))
    save(figure, "gaps.png")


def causality() -> None:
    """A camera at 10 Hz whose frames arrive 80 ms after they were taken, aligned with and without causal."""
    seconds = np.arange(0, 1.01, 0.1)
    stamps = np.rint(seconds * 1e9).astype(np.int64)
    stream = rc.Stream(curve(seconds), stamps, arrivals=stamps + 80_000_000)
    at = np.arange(0, 1.0, 0.0125)
    targets = np.rint(at * 1e9).astype(np.int64)
    between, seen = (rc.align([stream], targets, causal=causal)[0] for causal in (False, True))
    figure = Figure(figsize=(8, 3), dpi=110)
    axes = axes_of(figure)
    axes.plot(seconds, stream.values, "o", color=GREY, markersize=7, label="samples, when they were taken")
    axes.plot(at, between.values, ".", color=BLUE, markersize=4, label="causal=False: interpolated")
    held = seen.valid
    axes.plot(
        at[held], seen.values[held], ".", color=ORANGE, markersize=4, label="causal=True: the last that had arrived"
    )
    axes.legend(fontsize=8.5, frameon=False, loc="lower left", ncols=3, bbox_to_anchor=(0, 1))
    save(figure, "causality.png")


# ---- The gallery and the tutorial

STYLE = """\
backend: Agg
axes.spines.top: False
axes.spines.right: False
figure.figsize: 8, 3
figure.dpi: 110
savefig.bbox: tight
legend.frameon: False
legend.fontsize: 8.5
xtick.labelsize: 9
ytick.labelsize: 9
"""  # matplotlib reads it from the folder it runs in, as matplotlibrc


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A folder in which the lines of a page can run."""
    with tempfile.TemporaryDirectory(prefix="robocache-figures-") as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        (Path(folder) / "matplotlibrc").write_text(STYLE)
        yield Path(folder)


def execute(folder: Path, language: str, code: str) -> None:
    """`robocache` and `python` are those of the Python that runs this."""
    interpreter = [sys.executable, "-c"] if language == "python" else ["bash", "-euo", "pipefail", "-c"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([*interpreter, code], cwd=folder, env=os.environ | {"PATH": path}, check=True)


def gallery(name: str) -> None:
    """Runs the section of the gallery that shows this picture. It leaves the picture, or what to take one of."""
    section = next(each for each in GALLERY.read_text().split("\n## ") if f"(images/{name}.png)" in each)
    with workplace() as folder:
        for language, code in re.findall(r"^```(sh|python)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            execute(folder, language, code)
        keep(SCREENSHOTS[name](folder) if name in SCREENSHOTS else Image.open(folder / f"{name}.png"), name)


def mend() -> None:
    """The plots of the tutorial's recording, and beside them those of its recipe."""
    with workplace() as folder:
        execute(folder, "sh", TUTORIAL)
        moment = {"timeline": "recording", "timestamp": np.datetime64(1_700_000_006_250_000_000, "ns")}
        views = [rerun(folder / name, **moment) for name in ("before.rrd", "after.rrd")]
    width, height = PLOTS
    both = Image.new("RGB", (2 * width + 16, height), "white")
    for k, view in enumerate(views):
        both.paste(view.crop((0, 0, width, height)), (k * (width + 16), 0))
    keep(both, "mend")


TUTORIAL = """
python examples/make_recording.py run.mcap
robocache info run.mcap --full --write-recipe recipe.toml >/dev/null
robocache view run.mcap -o before.rrd
robocache view run.mcap --recipe recipe.toml -o after.rrd
"""


def keep(picture: Image.Image, name: str) -> None:
    """Into docs/images, with as many colours, up to 256, as fit into MOST bytes."""
    to = IMAGES / f"{name}.png"
    for colours in (256, 128, 64, 32):
        picture.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(to, optimize=True)
        if to.stat().st_size <= MOST:
            return
    sys.exit(f"{to}: {to.stat().st_size:,} bytes with 32 colours; a picture may have {MOST:,}")


def report(folder: Path) -> Image.Image:
    """The top of the report: as far as the gaps."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder / 'user'}"]
    options += ["--window-size=1200,1240", f"--screenshot={folder / 'report.png'}"]
    subprocess.run(["chromium", *options, str(folder / "report.html")], check=True, capture_output=True)
    return Image.open(folder / "report.png")


def rerun(file: Path, **moment: Any) -> Image.Image:
    """A view, paused at a moment, once two screenshots are equal: all is loaded then, and no notification is shown."""
    from rerun.experimental import ViewerClient

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [str(Path(sys.executable).with_name("rerun")), "--headless", "--window-size", "{}x{}".format(*VIEWER)]
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    viewer = subprocess.Popen([*program, "--port", str(port), str(file)], **silent)
    try:
        client = paused(lambda: ViewerClient.connect(f"rerun+http://127.0.0.1:{port}/proxy"), moment)
        before, end = b"", time.monotonic() + PATIENCE
        while (taken := client.take_screenshot()) != before:
            if time.monotonic() > end:
                sys.exit(f"{file.name}: the viewer still moves after {PATIENCE:g} s")
            before = taken
            time.sleep(8)  # longer than a notification is shown
    finally:
        os.killpg(viewer.pid, signal.SIGTERM)  # `rerun` is a script, and the viewer is its child
        viewer.wait()
    return Image.open(io.BytesIO(taken)).crop((0, BAR, *VIEWER))


def paused(connect: Callable[[], Any], moment: dict[str, Any]) -> Any:
    """The viewer, once it answers and has opened its file: a viewer without a recording refuses the time."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            client = connect()
            client.set_time(play_state="paused", **moment)
            return client
        except (ConnectionError, RuntimeError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


SCREENSHOTS: dict[str, Callable[[Path], Image.Image]] = {
    "report": report,
    "view": lambda folder: rerun(folder / "demo.rrd", timeline="recording", timestamp=1_700_000_005.9),
    "batch": lambda folder: rerun(folder / "batch.rrd", timeline="step", duration=0.2),
}
FIGURES: dict[str, Callable[[], None]] = {"gaps": gaps, "causality": causality, "mend": mend}
FIGURES |= {name: functools.partial(gallery, name) for name in ("report", "wrist", "voxels", "view", "batch")}


if __name__ == "__main__":
    for each in sys.argv[1:] or FIGURES:
        FIGURES[each]()
