"""What `tnwgd -v` says of the files of TLS that peer portals will open.

A configuration may be checked on another host than that of its DRO, so nothing of it is an error here.
"""

from __future__ import annotations

from collections.abc import Iterator

from dro.config.dro_xml.model import DroConfig
from dro.config.lint.finding import Finding, Machine, view_of, warning
from dro.transport.tls_files import problems


def tls_findings(config: DroConfig, now_s: float) -> Iterator[Finding]:
    for p in view_of(config, Machine()).peers:
        for problem in problems(p.config.tcp.tls, now_s) if p.config.tcp.tls is not None else ():
            why = "the portal cannot run" if problem.is_fatal else "companions accept it only while it is valid"
            yield warning(
                p.element("single-tcp", "tls", problem.element), f"<{problem.element}>", problem.what, why,
                problem.remedy, rule="tls-files", portal=p.config.name,
            )  # fmt: skip
