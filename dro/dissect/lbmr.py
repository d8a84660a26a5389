"""LBMR as named, printed fields, with the names and forms of the standard dissector.

The bytes are walked as they lie, so that lengths and flags are shown as sent even where the codec would write others;
the codec then decides whether the packet is valid. Where the standard dissector reads the wrong offset (A3 to A6 of
wire notes LBMR), this one does not.
"""

from __future__ import annotations

from dro.dissect.fields import FieldList, colon_hex, flag, hexint, ip4
from dro.dissect.lbmr_tables import (
    BITS,
    PACKET,
    PACKET_UNKNOWN,
    REMOTE,
    REMOTE_UNKNOWN,
    TNWG,
    TNWG_UNKNOWN,
    TOPT,
    TOPT_UNKNOWN,
    TRANSPORTS,
    OptionSpecs,
    Spec,
    pairs,
)
from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr import packet as lbmr


class _Walk:
    """One packet's bytes and the fields read from them so far."""

    def __init__(self, data: bytes, out: FieldList) -> None:
        self.data = data
        self.out = out

    def value(self, r: Reader, name: str, form: str) -> int:
        """One field; its number, or 0 when it is none. A form without a letter is skipped, not shown."""
        if form == "ip":
            number = r.u32(name)
            self.out.add(name, ip4(number))
            return number
        kind, size = form[0], form[1:]
        if form == "z":
            self.out.add(name, _text(r.cstring(name, r.left)))
        elif form == "*":
            raw = r.take(name, r.left)
            self.out.add(name, _text(raw.split(b"\0", 1)[0]))
        elif form == "B*":
            self.out.add(name, colon_hex(r.take(name, r.left)))
        elif kind == "b":
            self.out.add(name, colon_hex(r.take(name, int(size))))
        elif kind in "uxi":
            number = int.from_bytes(r.take(name, int(size)), "big", signed=kind == "i")
            self.out.add(name, hexint(number, 2 * int(size)) if kind == "x" else str(number))
            return number
        else:
            r.take(name, int(form))
        return 0

    def bits(self, name: str, number: int) -> None:
        for bit, mask in pairs(BITS.get(name, ""), "="):
            self.out.add(f"{name}.{bit}", flag(number & int(mask, 16)))

    def walk(self, r: Reader, prefix: str, spec: Spec) -> dict[str, int]:
        """All fields of a layout; their numbers by name. A name that begins with a slash stands without the prefix."""
        numbers = {}
        for name, form in pairs(spec):
            full = name[1:] if name.startswith("/") else f"{prefix}.{name}"
            numbers[name] = self.value(r, full, form)
            self.bits(full, numbers[name])
        return numbers

    def option(
        self,
        r: Reader,
        prefix: str,
        table: OptionSpecs,
        other: tuple[str, Spec],
        *,
        code_form: str,
        has_ignore_bit: bool,
    ) -> int:
        """Print one option; returns the length of all of them, which only a length option gives, or 0."""
        r.need(prefix, 2)
        code, length = r.data[r.pos], r.data[r.pos + 1]
        part, spec = table.get(code, other)
        name = prefix + part
        self.value(r, f"{name}.type", code_form)
        self.value(r, f"{name}.len", "u1")
        if length < 4:
            raise r.fail(name, f"length {length}")
        inner = r.sub(name, length - 2)
        total = 0
        for field_name, form in pairs(spec):
            full = field_name[1:] if field_name.startswith("/") else f"{name}.{field_name}"
            number = self.value(inner, full, form)
            if field_name == "flags" and has_ignore_bit and form[0] == "x" and part != "unknown":
                self.out.add(f"{full}.ignore", flag(number & (0x80 if form == "x1" else 0x8000)))
            self.bits(full, number)
            total = number if field_name == "total_len" else total
        return total

    # types 0, 1 and 6

    def tir(self, r: Reader) -> None:
        self.value(r, "lbmr.tir.name", "z")
        code = r.u8("lbmr.tir.transport")
        has_options, transport = code >> 7, code & 0x7F
        self.out.add("lbmr.tir.transport_opts", flag(has_options))
        self.out.add("lbmr.tir.transport_type", hexint(transport, 2))
        numbers = self.walk(r, "lbmr.tir", "tlen:u1 ttl:u2 index:u4")
        if has_options:
            self.tir_options(r)
        body = r.sub("lbmr.tir.transport", numbers["tlen"])
        spec = TRANSPORTS.get((transport, numbers["tlen"]), "unknown_transport:B*")
        self.walk(body, "lbmr.tir", spec)

    def tir_options(self, r: Reader) -> None:
        start = r.pos
        r.need("lbmr.topt", 4)
        if r.data[r.pos] != 0:
            raise r.fail("lbmr.topt.len", "does not begin with a length option")
        total = self.option(r, "lbmr.topt.", TOPT, TOPT_UNKNOWN, code_form="u1", has_ignore_bit=True)
        block = r.sub("lbmr.topt", max(start + total - r.pos, 0))
        while block.left:
            self.option(block, "lbmr.topt.", TOPT, TOPT_UNKNOWN, code_form="u1", has_ignore_bit=True)

    def wildcard_tqr(self, r: Reader) -> None:
        self.value(r, "lbmr.tqr.pattern_type", "u1")
        self.out.add("lbmr.tqr", "Wildcard TQR: " + _text(r.cstring("lbmr.tqr", r.left)))

    def qir(self, r: Reader) -> None:
        self.walk(r, "lbmr.qir", "qname:z tname:z queue_id:u4 queue_ver:u4 queue_prev_ver:u4")
        groups = r.u16("lbmr.qir.grp_blks")
        self.out.add("lbmr.qir.opts", flag(groups & 0x8000))
        self.out.add("lbmr.qir.grp_blks", str(groups & 0x7FFF))
        blocks = self.value(r, "lbmr.qir.queue_blks", "u2")
        if groups & 0x8000:
            self.tir_options(r)
        for _ in range(groups & 0x7FFF):
            self.walk(r, "lbmr.qir.grp", "grp_idx:u2 grp_sz:u2")
        for _ in range(blocks):
            self.walk(r, "lbmr.qir.queue", "ip:ip port:u2 idx:u2 grp_idx:u2 reserved:x2")

    # type 4

    def management(self, r: Reader) -> None:
        block = self.walk(r, "lbmr.tmb", "len:u2 tmrs:u2")
        for _ in range(block["tmrs"]):
            length = self.value(r, "lbmr.tmb.tmr.len", "u2")
            if length < 4:
                raise r.fail("lbmr.tmb.tmr.len", f"length {length}")
            record = r.sub("lbmr.tmb.tmr", length - 2)
            self.walk(record, "lbmr.tmb.tmr", "type:u1 flags:x1 name:z")

    # type 7

    def election(self, r: Reader) -> None:
        spec = "dep_type:u2 len:u2 flags:x2 source_ip:ip store_ip:ip transport_idx:u4 topic_idx:u4"
        numbers = self.walk(r, "lbmr.pser", spec + " source_port:u2 store_port:u2")
        self.value(r.sub("lbmr.pser.topic", numbers["len"] - 28), "lbmr.pser.topic", "*")
        if not numbers["flags"] & 0x8000:
            return
        head = self.walk(r, "lbmr.pser.opt.optlen", "type:x2 optlen:u2")
        block = r.sub("lbmr.pser.opt", head["optlen"] - 4)
        while block.left:
            length = block.data[block.pos]
            if length < 2:
                raise block.fail("lbmr.pser.opt.ctxinst.len", f"length {length}")
            item = block.sub("lbmr.pser.opt.ctxinst", length)
            self.walk(item, "lbmr.pser.opt.ctxinst", "len:u1 type:u1 ctxinst:B*")

    def queue_management(self, r: Reader) -> None:
        start = r.pos
        flags = self.value(r, "lbmr.qmgmt.flags", "x1")
        self.bits("lbmr.qmgmt.flags", flags)
        r.need("lbmr.qmgmt", 1)
        if r.data[start + 1] == lbmr.QueuePacket.INSTANCE_LIST:
            self.out.add("lbmr.qmgmt.flags.il_l_flag", flag(flags & 0x20))
            self.out.add("lbmr.qmgmt.flags.il_k_flag", flag(flags & 0x10))
        spec = "pckt_type:x1 cfg_sig:b20 queue_id:x4 queue_ver:x4 ip:ip port:u2 inst_idx:u2 grp_idx:u2"
        kind = self.walk(r, "lbmr.qmgmt", spec)["pckt_type"]
        match kind:
            case lbmr.QueuePacket.INSTANCE_LIST:
                count = self.value(r, "lbmr.qmgmt.il_num_insts", "u2")
                self.value(r, "lbmr.qmgmt.il.highest_rcr_tsp", "x4")
                for _ in range(count):
                    self.walk(r, "lbmr.qmgmt.il_inst", "ip:ip port:u2 inst_idx:u2 grp_idx:u2 flags:x2")
            case lbmr.QueuePacket.JOIN_REJECTION:
                self.value(r, "lbmr.qmgmt.jrej_code", "u2")
            case lbmr.QueuePacket.ELECTION_CALL:
                self.walk(r, "lbmr.qmgmt", "pckt_type_dep16:x2 ec.queue_new_ver:x4")
            case lbmr.QueuePacket.ELECTION_VOTE:
                self.walk(r, "lbmr.qmgmt", "ev_bias:u2 ev.highest_rcr_tsp:x4 ev.age:u4")
            case lbmr.QueuePacket.RESUME_OPERATION:
                self.walk(r, "lbmr.qmgmt", "pckt_type_dep16:x2 qro.highest_rcr_tsp:x4")
            case _:
                self.value(r, "lbmr.qmgmt.pckt_type_dep16", "x2")
        if flags & 0x40:
            self.value(r, "lbmr.qmgmt.qname", "*")

    def context_info(self, r: Reader) -> None:
        numbers = self.walk(r, "lbmr.ctxinfo", "len:u1 hop_count:u1 flags:x2 port:u2 ip:ip instance:b8")
        if numbers["flags"] & lbmr.ContextFlag.NAME:
            self.value(r.sub("lbmr.ctxinfo.name", numbers["len"] - 20), "lbmr.ctxinfo.name", "*")

    def tnwg(self, r: Reader) -> None:
        head = self.walk(r, "lbmr.tnwg", "len:u2 type:u2 reserved:x2")
        match head["type"]:
            case 0:
                count = self.walk(r, "lbmr.tnwg.interest", "len:u2 count:u2")["count"]
                for _ in range(count):
                    length = self.value(r, "lbmr.tnwg.interest_rec.len", "u2")
                    record = r.sub("lbmr.tnwg.interest_rec", length - 2)
                    self.walk(record, "lbmr.tnwg.interest_rec", "flags:x1 pattype:u1 domain_id:u4 symbol:*")
                return
            case 1:
                fixed = "len:u2 hop_count:u1 reserved:x1 flags1:x4 flags2:x4"
                body = r.sub("lbmr.tnwg.ctxinfo", self.walk(r, "lbmr.tnwg.ctxinfo", fixed)["len"] - 12)
            case 2:
                body = r.sub("lbmr.tnwg.trreq", self.value(r, "lbmr.tnwg.trreq.len", "u2") - 2)
            case _:
                return
        while body.left >= 4:
            self.option(body, "lbmr.tnwg.opt", TNWG, TNWG_UNKNOWN, code_form="x1", has_ignore_bit=True)

    def route(self, r: Reader) -> None:
        spec = "num_domains:u2 ip:ip port:u2 reserved:x2 length:u4"
        for _ in range(self.walk(r, "lbmr.remote_domain_route", spec)["num_domains"]):
            self.value(r, "lbmr.remote_domain_route.domain", "u4")

    def remote_context_info(self, r: Reader) -> None:
        head = self.walk(r, "lbmr.rctxinfo", "len:u2 num_recs:u2 reserved:x2")
        for _ in range(head["num_recs"]):
            record = self.walk(r, "lbmr.rctxinfo.rec", "len:u2 flags:x2")
            block = r.sub("lbmr.rctxinfo.rec", record["len"] - 4)
            while block.left:
                self.option(block, "lbmr.rctxinfo.rec.", REMOTE, REMOTE_UNKNOWN, code_form="u1", has_ignore_bit=False)

    # the packet

    def packet(self) -> None:
        r = Reader(self.data)
        first = r.u8("lbmr.hdr")
        kind = first & 0x07
        self.out.add("lbmr.hdr.ver", str(first >> 4))
        self.out.add("lbmr.hdr.opts", flag(first & 0x08))
        self.out.add("lbmr.hdr.type", hexint(kind, 2))
        end = len(self.data)
        if first & 0x08:
            end = lbmr_options_start(self.data)
        body = Reader(self.data, 1, end)
        if kind == lbmr.PacketType.EXTENDED:
            self.extended(body)
        else:
            self.plain(kind, body)
        options = Reader(self.data, end)
        while options.left:
            self.option(options, "lbmr.opt.", PACKET, PACKET_UNKNOWN, code_form="x1", has_ignore_bit=True)

    def plain(self, kind: int, r: Reader) -> None:
        names = ("qqrs", "qirs") if kind == lbmr.PacketType.QUEUE_RESOLUTION else ("tqrs", "tirs")
        queries = self.value(r, f"lbmr.hdr.{names[0]}", "u1")
        answers = self.value(r, f"lbmr.hdr.{names[1]}", "u2")
        match kind:
            case lbmr.PacketType.NORMAL:
                for _ in range(queries):
                    self.value(r, "lbmr.tqr.name", "z")
                for _ in range(answers):
                    self.tir(r)
            case lbmr.PacketType.WILDCARD:
                for _ in range(queries):
                    self.wildcard_tqr(r)
                for _ in range(answers):
                    self.tir(r)
            case lbmr.PacketType.QUEUE_RESOLUTION:
                for _ in range(queries):
                    self.value(r, "lbmr.qqr.name", "z")
                for _ in range(answers):
                    self.qir(r)
            case lbmr.PacketType.TOPIC_MANAGEMENT:
                self.management(r)

    def extended(self, r: Reader) -> None:
        match self.value(r, "lbmr.hdr.ext_type", "x1"):
            case lbmr.ExtendedType.PROXY_SOURCE_ELECTION:
                self.election(r)
            case lbmr.ExtendedType.QUEUE_MANAGEMENT:
                self.queue_management(r)
            case lbmr.ExtendedType.CONTEXT_INFO:
                self.context_info(r)
            case lbmr.ExtendedType.TOPIC_RESOLUTION_REQUEST:
                self.walk(r, "lbmr.topic_res_request", "flags:x2")
            case lbmr.ExtendedType.TNWG:
                self.tnwg(r)
            case lbmr.ExtendedType.REMOTE_DOMAIN_ROUTE:
                self.route(r)
            case lbmr.ExtendedType.REMOTE_CONTEXT_INFO:
                self.remote_context_info(r)


def _text(name: bytes) -> str:
    """Decode a name as ASCII, anything else as a replacement character."""
    return name.decode("ascii", "replace")


def lbmr_options_start(data: bytes) -> int:
    """Find where the packet options begin. Raises: DecodeError when the packet does not end with a length option."""
    tail = data[-4:]
    start = len(data) - int.from_bytes(tail[2:], "big")
    if len(tail) < 4 or tail[:2] != b"\x80\x04" or not 4 <= start <= len(data) - 4:
        raise DecodeError("lbmr.opt.len", "does not end with a good length option", max(len(data) - 4, 0))
    return start


def lbmr_fields(data: bytes, out: FieldList) -> None:
    """Add the fields of one LBMR datagram to `out`.

    Raises: DecodeError when the packet is malformed; `out` then holds what was read before.
    """
    _Walk(data, out).packet()
    lbmr.decode(data)
