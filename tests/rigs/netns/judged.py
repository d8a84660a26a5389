"""Every network test shows what it put on the wire to an independent dissector.

    with judged(net, "trd1", "trd2", minimum={"trd2": {"lbtrm.data": 100}}) as watch:
        ...                                   # start processes, send, receive, stop
    assert watch["trd2"].counts["lbmr.tir"]   # verdicts are there after the block

The captures run from before the block to its end; then each must decode without an oddity (`capture.judge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.rigs.netns.capture import DEFAULT_PORTS, Capture, Verdict, judge_all
from tests.rigs.netns.harness import Net


@dataclass
class Watch:
    """The captures of a block. `verdicts` and `paths` are filled when the block ends without an exception."""

    captures: dict[str, Capture]
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)

    def __getitem__(self, trd: str) -> Verdict:
        return self.verdicts[trd]

    def total(self, kind: str) -> int:
        """Packets of a kind in all TRDs."""
        return sum(verdict.counts.get(kind, 0) for verdict in self.verdicts.values())


@contextmanager
def judged(
    net: Net,
    *trds: str,
    decode_as: Iterable[str] = (),
    minimum: Mapping[str, Mapping[str, int]] | None = None,
    allow: Sequence[str] = (),
) -> Iterator[Watch]:
    """Capture these TRDs (made when they are new) for the block, then fail unless all of it decodes clean.

    `decode_as`: rules for ports that are not UM's defaults, see `capture.ports`. `minimum`: least packets per kind, by
    TRD; without it a TRD must have carried at least one frame. `allow`: see `capture.judge`. Enter it before starting
    processes: a TCP stream that is joined in the middle cannot be decoded.
    """
    unknown = set(minimum or {}) - set(trds)
    if unknown or not trds:
        raise ValueError(f"judged: name each TRD once, as an argument; {unknown or 'none given'}")
    watch = Watch({trd: net.capture(trd) for trd in trds})
    yield watch
    for trd, capture in watch.captures.items():
        watch.paths[trd] = capture.stop()
    verdicts = judge_all(list(watch.paths.values()), (*DEFAULT_PORTS, *decode_as), allow=allow)
    watch.verdicts |= zip(watch.paths, verdicts, strict=True)
    for trd, verdict in watch.verdicts.items():
        assert verdict.frames, f"{trd}: nothing was on the wire"
        verdict.assert_clean((minimum or {}).get(trd))
