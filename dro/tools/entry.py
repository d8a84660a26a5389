"""The entries of the tools: while a program is loaded, Ctrl-C ends it at once and quietly, by the signal itself."""

from __future__ import annotations

import signal


def lbmsrc() -> int:
    return _run("dro.tools.lbm.lbmsrc")


def lbmrcv() -> int:
    return _run("dro.tools.lbm.lbmrcv")


def lbmwrcv() -> int:
    return _run("dro.tools.lbm.lbmwrcv")


def lbmreq() -> int:
    return _run("dro.tools.immediate.lbmreq")


def lbmresp() -> int:
    return _run("dro.tools.immediate.lbmresp")


def lbmimsg() -> int:
    return _run("dro.tools.immediate.lbmimsg")


def lbmireq() -> int:
    return _run("dro.tools.immediate.lbmireq")


def lbmtrreq() -> int:
    return _run("dro.tools.immediate.lbmtrreq")


def lbmmon() -> int:
    return _run("dro.tools.lbmmon.lbmmon")


def tnwgdmon() -> int:
    return _run("dro.tools.lbmmon.tnwgdmon")


def tnwgdcmd() -> int:
    return _run("dro.tools.lbmmon.tnwgdcmd")


def umdump() -> int:
    return _run("dro.tools.umdump.main")


def _run(module: str) -> int:
    """Run a tool; returns the exit status. One that ends in good order takes the signal over when it begins."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from importlib import import_module

    return int(import_module(module).main())
