"""`use_tls` in both TRDs of a DRO: sources, portals and receivers know each other by their certificates."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.builders.certificates import self_signed
from tests.rigs.flow import DUPLICATES, MISSING, PAUSE, RECEIVED, WRONG, Board
from tests.rigs.site import Site, drained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, which makes certificates"),
]


def test_a_flow_over_tls_is_whole_and_a_receiver_without_it_gets_nothing(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path, "site")
    tls = f"context use_tls 1\ncontext tls_certificate {certificate}\ncontext tls_certificate_key {key}\n"
    tls += f"context tls_trusted_certificates {certificate}\n"
    site = Site(tmp_path, 2, transports={1: "tcp", 2: "tcp"}, um={1: tls, 2: tls})
    try:
        site.start()
        sent, plain = Board.create(tmp_path, "flow", 5), Board.create(tmp_path, "flow@plain", 5)
        site.python("-m", "tests.rigs.flow", str(site.config(1)), "--send", str(sent.path), "--rate", "500", name="c1")
        site.python("-m", "tests.rigs.flow", str(site.config(2)), "--receive", str(sent.path), name="c2")
        site.wait(lambda: sent.is_flowing, "it flows")
        without = tmp_path / "plain.cfg"
        without.write_text(site.config(2).read_text().replace(tls, ""))
        site.python("-m", "tests.rigs.flow", str(without), "--receive", str(plain.path), name="c3")
        site.wait(lambda: "TLS connection refused" in site.log, "the stranger is refused")
        assert plain[RECEIVED] == 0
        sent[PAUSE] = 1
        with site.books() as books:
            site.wait(lambda: drained(books), "nothing is on its way")
            assert books.problems() == []
        site.wait(lambda: sent.is_complete, "all of it has come")
        assert (sent[MISSING], sent[DUPLICATES], sent[WRONG]) == (0, 0, 0), sent.story()
    finally:
        site.close()
