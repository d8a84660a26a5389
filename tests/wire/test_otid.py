"""OTIDs of all transports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire import otid
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    SourceString,
    TcpAddress,
    TransportAddress,
    TransportCode,
    UnknownTransport,
)
from tests.builders import lbmr_strategies as some

IP = 0x0A1D0479
REST = "50a53ee9f8fe40d8db32fc97"  # topic index, ContextID, transport index
ZERO = "0000000000000000"
LAYOUTS: list[tuple[TransportAddress, str]] = [
    (TcpAddress(IP, 14371, 0x0A1B2C3D), "000a1d04793823" + REST + "0a1b2c3d" + "0000000000000000" + "01"),
    (LbtruAddress(IP, 14381, 0x00C0FFEE), "010a1d0479382d" + "eeffc000" + REST + ZERO + "01"),
    (
        LbtrmAddress(IP, 0xEF65030A, 0xF9D74F3E, 14400, 12090),
        "100a1d04792f3aef65030a3840" + "3e4fd7f9" + REST + "0000" + "01",
    ),
    (RdmaAddress(IP, 20020, 0x55AA0102), "200a1d04794e34" + "0201aa55" + REST + ZERO + "01"),
    (IpcAddress(IP, 0x5F6E7D8C, 0x4E23), "400a1d0479" + "234e" + "8c7d6e5f" + REST + ZERO + "01"),
    (SmxAddress(IP, 0x5F6E7D8C, 0x7531), "040a1d0479" + "3175" + "8c7d6e5f" + REST + ZERO + "01"),
]


@pytest.mark.parametrize(("address", "text"), LAYOUTS, ids=lambda value: type(value).__name__)
def test_the_layout_of_each_transport(address: TransportAddress, text: str) -> None:
    data = otid.encode(address, 0x50A53EE9, 0xF8FE40D8, 0xDB32FC97)
    assert data.hex() == text
    assert len(data) == otid.OTID_SIZE
    name = otid.decode(data)
    assert name == otid.Otid(address, 0x50A53EE9, 0xF8FE40D8, 0xDB32FC97)
    assert name.transport_type == data[0]
    assert name.source == SourceString(address, 0x50A53EE9)


def test_the_name_of_an_otid_is_its_source_string() -> None:
    data = otid.encode(TcpAddress(0xC000020A, 14371, 0x0A1B2C3D), 42, 0, 0)
    assert str(otid.decode(data)) == "TCP:192.0.2.10:14371:0a1b2c3d[42]"


def test_version_0_has_no_transport_index() -> None:
    data = bytearray(otid.encode(TcpAddress(IP, 1), 1, 2, 3))
    data[31] = 0
    assert otid.decode(bytes(data)) == otid.Otid(TcpAddress(IP, 1), 1, 2, 0, 0)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_another_size_is_refused(size: int) -> None:
    with pytest.raises(DecodeError):
        otid.decode(bytes(size))


@pytest.mark.parametrize("code", [TransportCode.TCP6, TransportCode.PGM, 0x90])
def test_a_transport_without_a_layout_is_refused(code: int) -> None:
    with pytest.raises(DecodeError):
        otid.decode(bytes((code,)) + bytes(31))
    with pytest.raises(DecodeError):
        otid.encode(UnknownTransport(code, b""), 1, 2, 3)
    assert otid.Otid(UnknownTransport(code, b""), 1, 2, 3).transport_type == code


@pytest.mark.parametrize(
    "address", [TcpAddress(IP, 65536), LbtruAddress(IP, 1, 1 << 32), IpcAddress(1, 1, 65536), SmxAddress(1, -1, 1)]
)
def test_a_value_that_does_not_fit_is_refused(address: TransportAddress) -> None:
    with pytest.raises(DecodeError):
        otid.encode(address, 1, 2, 3)


@given(some.session_addresses, some.u32, some.u32, some.u32)
def test_decoding_what_was_encoded_gives_it_back(
    address: TransportAddress, topic_index: int, context_id: int, transport_index: int
) -> None:
    name = otid.decode(otid.encode(address, topic_index, context_id, transport_index))
    assert name == otid.Otid(address, topic_index, context_id, transport_index)


@given(st.binary(min_size=32, max_size=32))
def test_arbitrary_bytes_decode_or_raise_decode_errors(data: bytes) -> None:
    try:
        name = otid.decode(data)
    except DecodeError:
        return
    assert name.transport_type == data[0]
    assert str(name).endswith(f"[{name.topic_index}]")
