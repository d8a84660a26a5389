"""`umdump`: Ultra Messaging packets of a capture file, or of a hex string, as JSON Lines.

Four modes. Hex: one packet from the command line, one object. Packets: every UM packet of the files with the field
names of the standard dissectors. Summary: counts, sessions, topics, losses. Topic: the messages of one topic.
Reads any length of capture in bounded memory; `docs/umdump.md` describes options and output.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, Final, TextIO

from dro.command_line import EXIT_USAGE, Parser, add_version
from dro.dissect.capture import Capture, UmPacket
from dro.dissect.fields import ip4
from dro.dissect.follow import LBMC, LBMR, LBMSRS, LBTRM, LBTRU, LBTTCP, TCP_PROTOS, UDP_PROTOS, DecodeAs, Directory
from dro.dissect.packet import fields
from dro.dissect.pcap import Frame, read_frames
from dro.errors import ConfigError, DecodeError
from dro.standard_streams import open_standard_streams, output_lost, say
from dro.tools.text import printable_text, time_text
from dro.tools.umdump.counts import CaptureCounts
from dro.tools.umdump.ports import rules_of
from dro.tools.umdump.summary import Json, as_json, as_text
from dro.tools.umdump.topic import TopicFollower, TopicMessage
from dro.wire.lbmc import properties

EXIT_OK: Final = 0
EXIT_BAD: Final = 1  # a malformed packet, or a file that cannot be read to its end
PROTOS: Final = (LBMR, LBMC, LBTRM, LBTRU, LBTTCP, LBMSRS)

_RULE: Final = re.compile(r"(udp|tcp)\.port==(\d{1,5})(?:-(\d{1,5}))?,([a-z]+)")
_PROGRESS_FRAMES: Final = 2048  # between two looks at the clock
_PROGRESS_S: Final = 0.2
_BUFFER: Final = 1 << 18


def parse_rule(text: str) -> DecodeAs:
    """A `--decode-as` rule. Raises: ArgumentTypeError saying what the rule should look like."""
    match = _RULE.fullmatch(text.strip().replace(" ", ""))
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no rule; write udp.port==14400,lbtrm or tcp.port==14371,lbttcp")
    carrier, low_text, high_text, proto = match.groups()
    low, high = int(low_text), int(high_text or low_text)
    if not 0 < low <= high <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} names no port; ports are 1 to 65535")
    known = TCP_PROTOS if carrier == "tcp" else UDP_PROTOS
    if proto not in known:
        raise argparse.ArgumentTypeError(f"{proto} does not run on {carrier}; use one of {', '.join(known)}")
    return DecodeAs(carrier == "tcp", low, high, LBTTCP if carrier == "tcp" and proto == LBMC else proto)


def parse_hex(text: str) -> bytes:
    """Bytes from hex digits with spaces, colons, dots, dashes and 0x in between. Raises: ArgumentTypeError."""
    digits = re.sub(r"0[xX]|[\s:.,_-]", "", text)
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise argparse.ArgumentTypeError("not hex; give pairs of digits such as 00:01 or 0001") from None


class _Options(argparse.Namespace):
    files: list[str]
    hex: bytes | None
    proto: str | None
    config: list[str]
    decode_as: list[DecodeAs]
    summary: bool
    json: bool
    follow_topic: str | None
    two_pass: bool


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = Parser(prog="umdump", description="Show Ultra Messaging packets of a capture as JSON Lines.")
    add_version(parser)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="pcap or pcapng file, - for standard input")
    add("--hex", type=parse_hex, metavar="HEX", help="decode these bytes instead; needs --proto")
    add("--proto", choices=PROTOS, help="what --hex holds; with files: show only this protocol")
    add("-c", dest="config", action="append", default=[], metavar="FILE",
        help="UM configuration file: its ports are UM's")  # fmt: skip
    add("--decode-as", type=parse_rule, action="append", default=[], metavar="RULE",
        help="udp.port==N,PROTO tcp.port==N,lbttcp or lbmsrs; N may be a range A-B; may be given often")  # fmt: skip
    add("--summary", action="store_true", help="count instead of showing packets")
    add("--json", action="store_true", help="with --summary: one JSON object instead of tables")
    add("--follow-topic", metavar="NAME", help="show the messages of this topic instead of packets")
    add("--two-pass", action="store_true", help="read files twice, so that late advertisements count from the start")
    return parser


def _parse(argv: Sequence[str] | None) -> _Options:
    parser = arguments()
    options = parser.parse_args(argv, _Options())
    if options.hex is not None:
        others = (options.files, options.config, options.decode_as, options.summary, options.json, options.two_pass)
        if any(others) or options.follow_topic is not None:
            parser.error("--hex decodes one packet; leave out FILE and every option but --proto")
        if options.proto is None:
            parser.error(f"--hex needs --proto; add --proto {'|'.join(PROTOS)}")
    elif not options.files:
        parser.error("nothing to read; give a capture file, - for standard input, or --hex")
    if options.summary and options.follow_topic is not None:
        parser.error("--summary and --follow-topic exclude each other; run umdump twice")
    if options.json and not options.summary:
        parser.error("--json is the form of --summary; packets and messages are JSON without it")
    if options.proto is not None and options.follow_topic is not None:
        parser.error("--follow-topic takes messages of all protocols; leave out --proto")
    if options.two_pass and "-" in options.files:
        parser.error("--two-pass cannot read standard input twice; save it to a file first")
    if options.files.count("-") > 1:
        parser.error("standard input can be read only once; give - once")
    return options


class _Progress:
    """One line on a terminal: frames, and how much of the file is read. Silent elsewhere."""

    def __init__(self, out: TextIO, *, is_wanted: bool) -> None:
        self._out = out
        self._is_on = is_wanted and out.isatty()
        self._due = 0.0
        self._is_shown = False

    def watch(self, frames: Iterator[Frame], stream: BinaryIO, size: int) -> Iterator[Frame]:
        """The same frames, with the line kept up to date. `size` 0: not known."""
        if not self._is_on:
            return frames
        return self._watched(frames, stream, size)

    def _watched(self, frames: Iterator[Frame], stream: BinaryIO, size: int) -> Iterator[Frame]:
        for count, frame in enumerate(frames, 1):
            yield frame
            if count % _PROGRESS_FRAMES == 0 and time.monotonic() >= self._due:
                self._due = time.monotonic() + _PROGRESS_S
                self._show(count, stream.tell() / size if size else -1.0)

    def _show(self, count: int, part: float) -> None:
        bar = "" if part < 0 else f" [{'#' * int(part * 30):30}] {part:4.0%}"
        self._out.write(f"\r{count} frames{bar}\x1b[K")
        self._out.flush()
        self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._is_shown = False


class _OutputLost(Exception):
    """Standard output cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _Run:
    """One reading of all files; `status` is what the program will exit with."""

    def __init__(self, options: _Options, out: TextIO, err: TextIO) -> None:
        self.options = options
        self.status = EXIT_OK
        self.protos: set[str] = set()  # of the UM packets
        self.directory = Directory(options.decode_as)
        self.capture = Capture(self.directory)
        self.progress = _Progress(err, is_wanted=options.summary or not out.isatty())
        self._out = out
        self._err = err
        self._is_live = False
        self._file = ""

    def write(self, value: dict[str, Json]) -> None:
        self.write_text(json.dumps(value) + "\n")

    def write_text(self, text: str) -> None:
        try:
            self._out.write(text)
            if self._is_live:
                self._out.flush()
        except OSError as e:
            raise _OutputLost(e) from e  # not to be taken for a file that cannot be read

    def flush(self) -> None:
        try:
            self._out.flush()
        except OSError as e:
            raise _OutputLost(e) from e

    def read(self, on_packet: Callable[[UmPacket], None]) -> None:
        """Feed the packets of all files to `on_packet`; a file that breaks off is reported and the next one read."""

        def counted(packet: UmPacket) -> None:
            self.protos.add(packet.proto)
            on_packet(packet)

        try:
            if self.options.two_pass:
                for name in self.options.files:
                    self._read_file(name, self.capture.learn, is_quiet=True)
            for name in self.options.files:
                self._file = name
                self._read_file(name, lambda frames: _drain(self.capture.packets(frames), counted))
        except KeyboardInterrupt:
            self.progress.clear()  # the usual end of a live capture: show what there is
        self.progress.clear()
        _drain(self.capture.finish(), counted)
        wanted = self.options.proto
        if self.status == EXIT_BAD:
            return
        if not self.protos:
            self.hint("no UM packet was recognised; for ports other than UM's defaults give -c FILE or --decode-as")
        elif wanted is not None and wanted not in self.protos:
            why = ", and LBMC messages that a transport carries belong to its packets" if wanted == LBMC else ""
            found = ", ".join(sorted(self.protos))
            self.hint(f"no {wanted} packet: the capture has {found}{why}; leave out --proto, or name one of these")

    def _read_file(self, name: str, consume: Callable[[Iterator[Frame]], None], *, is_quiet: bool = False) -> None:
        try:
            with _opened(name) as stream:
                size = _size(stream)
                self._is_live = not size
                consume(self.progress.watch(read_frames(stream), stream, size))
        except DecodeError as e:
            if not is_quiet:
                self.fail(f"{name}: {e}")
        except OSError as e:
            if not is_quiet:
                self.fail(f"{name}: {e.strerror}; give a readable pcap or pcapng file")

    def fail(self, text: str) -> None:
        self.status = EXIT_BAD
        self.hint(text)

    def hint(self, text: str) -> None:
        self.progress.clear()
        self.flush()
        say(self._err, f"umdump: {text}\n")

    def place(self, frame: int, time_ns: int) -> dict[str, Json]:
        """Return what every object begins with; the file only when there are several."""
        out: dict[str, Json] = {"file": self._file} if len(self.options.files) > 1 else {}
        out["frame"] = frame
        out["time"] = time_text(time_ns)
        return out


def _drain(packets: Iterator[UmPacket], on_packet: Callable[[UmPacket], None]) -> None:
    for packet in packets:
        on_packet(packet)


def _size(stream: BinaryIO) -> int:
    """Return the bytes of a regular file, 0 for a pipe."""
    try:
        mode = os.fstat(stream.fileno())
    except OSError:
        return 0
    return mode.st_size if stat.S_ISREG(mode.st_mode) else 0


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with open(name, "rb", buffering=_BUFFER) as stream:
        yield stream


def _show_hex(run: _Run, data: bytes, proto: str) -> None:
    found = fields(proto, data)
    out: dict[str, Json] = {"proto": proto, "fields": _values(found.values)}
    if found.error is not None:
        out["error"] = str(found.error)
        run.status = EXIT_BAD
    run.write(out)


def _values(values: dict[str, str | list[str]]) -> dict[str, Json]:
    return {name: list(value) if isinstance(value, list) else value for name, value in values.items()}


def _show_packets(run: _Run) -> None:
    wanted = run.options.proto

    def show(packet: UmPacket) -> None:
        if wanted is not None and packet.proto != wanted:
            return
        found = fields(packet.proto, packet.data)
        out = run.place(packet.frame, packet.time_ns)
        out["src"] = f"{ip4(packet.src)}:{packet.sport}"
        out["dst"] = f"{ip4(packet.dst)}:{packet.dport}"
        out["proto"] = packet.proto
        if packet.lost:
            out["lost"] = packet.lost if packet.lost > 0 else None  # null: nobody can tell how much
        out["fields"] = _values(found.values)
        error = found.error or packet.error
        if packet.cut:
            out["cut"] = packet.cut
        elif error is not None:
            out["error"] = str(error)
            run.status = EXIT_BAD
        run.write(out)

    run.read(show)


def _show_summary(run: _Run) -> None:
    counts = CaptureCounts(run.directory)
    wanted = run.options.proto

    def count(packet: UmPacket) -> None:
        if wanted is None or packet.proto == wanted:
            counts.on_packet(packet)

    run.read(count)
    summary = as_json(counts, run.capture)
    if run.options.json:
        run.write(summary)
    else:
        run.write_text(as_text(summary))
    if counts.malformed:
        run.status = EXIT_BAD


def _show_topic(run: _Run, topic: str) -> None:
    follower = TopicFollower(os.fsencode(topic), run.directory)
    counts = CaptureCounts(run.directory)
    shown = 0

    def follow(packet: UmPacket) -> None:
        nonlocal shown
        counts.on_packet(packet)
        for message in follower.on_packet(packet):
            run.write(run.place(message.frame, message.time_ns) | _message(message, topic))
            shown += 1

    run.read(follow)
    if not shown and run.protos:
        run.hint(f"no message of topic {topic!r}; umdump --summary lists the topics of the capture")
    if counts.malformed:
        run.status = EXIT_BAD


def _message(message: TopicMessage, topic: str) -> dict[str, Json]:
    out: dict[str, Json] = {
        "topic": topic,
        "source": message.source,
        "sqn": message.sqn,
        "length": len(message.payload),
        "hex": message.payload.hex(),
    }
    text = printable_text(message.payload)
    if text:
        out["text"] = text
    if message.fragments > 1:
        out["fragments"] = message.fragments
    if message.is_retransmission:
        out["retransmission"] = True
    if message.properties:
        out["properties"] = {
            item.key.decode("utf-8", "backslashreplace"): _property(item) for item in message.properties
        }
    return out


def _property(item: properties.Property) -> Json:
    value = item.value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status: 0, 1 for malformed packets or unreadable files, 2 for wrong arguments."""
    open_standard_streams()
    options = _parse(argv)
    try:
        options.decode_as += rules_of(options.config, lambda text: say(sys.stderr, f"umdump: warning: {text}\n"))
    except ConfigError as e:
        say(sys.stderr, f"umdump: {e}\n")
        return EXIT_USAGE
    run = _Run(options, sys.stdout, sys.stderr)
    try:
        if options.hex is not None:
            _show_hex(run, options.hex, str(options.proto))
        elif options.summary:
            _show_summary(run)
        elif options.follow_topic is not None:
            _show_topic(run, options.follow_topic)
        else:
            _show_packets(run)
        run.flush()
    except _OutputLost as e:
        error = output_lost(e.error)
        if error is not None:
            run.fail(str(error))
    return run.status


if __name__ == "__main__":
    sys.exit(main())
