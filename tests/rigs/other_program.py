"""Another version of the program beside this one: the same code, with a version, and faults, of its own.

Its interpreter is a script that sets where Python looks for modules. What it does otherwise stands in a module that
Python runs as it begins.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.rigs.site import ROOT, Site

VERSION: Final = "9.9.0"
NEXT_VERSION: Final = "9.9.1"
_PACKAGES: Final = ("dro", "portals", "router", "supervisor")

LAYOUT: Final = """
from dro.shared_memory import ring
ring.LAYOUT_VERSION += 1
"""
"""Has rings of another layout."""
MUTE: Final = """
raise SystemExit("no module named anything")
"""
"""Does not start."""
CANNOT_ADOPT: Final = """
import sys
if "--take-over" in sys.orig_argv:
    from dro.errors import ResourceError
    from supervisor.start import take_over
    def refuse(parent, description):
        adopted(parent, description)
        raise ResourceError("no room for it")
    adopted, take_over.adopt = take_over.adopt, refuse
"""
"""Fails when it has adopted everything."""
BAD_PORTAL: Final = """
import sys
if "--take-over" in sys.orig_argv:
    from dro.errors import ResourceError
    from portals.endpoint import portal
    def run(ctx, endpoint, config):
        if endpoint.name == "P2":
            raise ResourceError("P2 does not like the new version", remedy="take the old one")
        run_endpoint(ctx, endpoint, config)
    run_endpoint, portal.run_endpoint = portal.run_endpoint, run
"""
"""Takes over, and cannot start the second portal."""

SLOWLY_BAD_PORTAL: Final = BAD_PORTAL.replace(
    "        if endpoint.name ==",
    """\
        if endpoint.name == "P1":
            import time
            time.sleep(1)
        if endpoint.name ==""",
)
"""Also takes its time to start the first one."""
DYING_PORTAL: Final = """
import os, signal, sys
if "--take-over" in sys.orig_argv:
    from dro.clock import ms
    from portals.endpoint import portal
    def run(ctx, endpoint, config):
        if endpoint.name == "P2":
            ctx.loop.call_later(ms(1500), lambda: os.kill(os.getpid(), signal.SIGSEGV))
        run_endpoint(ctx, endpoint, config)
    run_endpoint, portal.run_endpoint = portal.run_endpoint, run
"""
"""Takes over; the second portal goes on, and crashes a little later, each time."""


class SiteOfItsOwn(Site):
    """A site whose daemon was started as users do, so that it knows what runs it."""

    POPEN = subprocess.Popen


def make_program(folder: Path, fault: str = "", version: str = VERSION) -> Path:
    """Make one; its interpreter."""
    place = folder / f"other-{version}"
    place.mkdir()
    for package in _PACKAGES:
        (place / package).symlink_to(ROOT / package)
    _say(place, fault, version)
    python = place / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={place} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def overwrite(python: Path, fault: str = "") -> None:
    """Put the next version in the place of that program, as a package manager does."""
    _say(python.parent, fault, NEXT_VERSION)


def _say(place: Path, fault: str, version: str) -> None:
    """Let the program there be of that version, and have that fault."""
    for former in place.glob("open_dro-*"):
        shutil.rmtree(former)
    information = place / f"open_dro-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: open-dro\nVersion: {version}\n")
    (place / "sitecustomize.py").write_text(fault)
    shutil.rmtree(place / "__pycache__", ignore_errors=True)
