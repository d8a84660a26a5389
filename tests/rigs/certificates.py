"""Authorities, certificates and keys for tests of TLS, of every kind that a test may want."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
DAY = datetime.timedelta(days=1)


def make_key(kind: str) -> Key:
    return rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())


class Authority:
    """Signs certificates; its own is in the file `trusted`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = make_key("ec")
        made = self._builder(self._name, self._key, -1.0, 365.0)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.trusted = str(folder / f"{name}.pem")
        Path(self.trusted).write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def _builder(self, subject: x509.Name, key: Key, begins: float, ends: float) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins * DAY)
            .not_valid_after(now + ends * DAY)
        )

    def leaf(
        self,
        name: str,
        *,
        file: str = "",
        dns: Sequence[str] = (),
        begins: float = -1.0,
        ends: float = 90.0,
        key: str = "ec",
        password: str = "",
        is_for_clients: bool = True,
    ) -> tuple[str, str]:
        """Paths of a certificate and of its key, named after `file` or else `name`; times are days from now."""
        private = make_key(key)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, private, begins, ends)
        if dns:
            made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in dns]), critical=False)
        if not is_for_clients:
            made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        paths = self.folder / f"{file or name}.pem", self.folder / f"{file or name}.key"
        paths[0].write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        paths[1].write_bytes(key_text(private, password))
        return str(paths[0]), str(paths[1])


def key_text(key: Key, password: str) -> bytes:
    protection = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
