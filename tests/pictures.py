"""Takes the pictures of the guides from the network of the tutorial: `python -m tests.pictures docs/pictures`.

It runs for a quarter of an hour, so that charts have something to show. Needs Chromium.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from selenium import webdriver

from tests.rigs.browser import be_a_phone, made_options, reset, set_scheme, started

BIN: Final = Path(sys.executable).parent
NORTH, SOUTH = "http://127.0.0.1:15304", "http://127.0.0.1:15305"
SET_UP: Final = """
tnwgd init peer --name NORTH --trd 127.0.0.1 --connect 127.0.0.1:26123 --output north.xml
tnwgd init peer --name SOUTH --trd 127.0.0.1 --listen 26123 --output south.xml
"""
PROGRAMS: Final = """
tnwgd north.xml
tnwgd south.xml
lbmsrc -c trd1.cfg -P 20 quotes.ACME
lbmsrc -c trd1.cfg -P 50 quotes.EMCA
lbmrcv -c trd2.cfg quotes.ACME
lbmrcv -c trd2.cfg quotes.EMCA
"""
PICTURES: Final = {
    "main": (f"{NORTH}/", "light"),
    "portal-dark": (f"{SOUTH}/portal?name=SOUTH-PEER", "dark"),
    "path": (f"{NORTH}/path?from=1&to=2", "light"),
}
TOPIC: Final = f"{SOUTH}/topic?topic=quotes.AMCE&from=1&to=2"


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    env = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as base, ExitStack() as stack:
        folder = Path(base, "try")
        folder.mkdir()
        for command in SET_UP.strip().splitlines():
            subprocess.run(shlex.split(command), cwd=folder, env=env, check=True)
        for command in PROGRAMS.strip().splitlines():
            program = subprocess.Popen(shlex.split(command), cwd=folder, env=env, stdout=subprocess.DEVNULL)
            stack.callback(program.wait)
            stack.callback(program.terminate)
        time.sleep(15 * 60)
        for browser in started(made_options()):
            for picture, (address, scheme) in PICTURES.items():
                reset(browser)
                set_scheme(browser, scheme)
                _take(browser, address, target / f"{picture}.png")
            _take(browser, TOPIC, target / "topic.png")
            be_a_phone(browser)
            _take(browser, f"{NORTH}/", target / "phone.png")


def _take(browser: webdriver.Chrome, address: str, target: Path) -> None:
    browser.get(address)
    time.sleep(3)  # for what is brought by the page itself
    browser.save_screenshot(str(target))


if __name__ == "__main__":
    main()
