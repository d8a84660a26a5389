"""Keys and certificates for tests, made by the program `openssl`."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str, *, password: str = "") -> tuple[str, str]:
    """Paths of a certificate and of its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    protection = ["-passout", f"pass:{password}"] if password else ["-noenc"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "30", "-subj", f"/CN={name}", *protection,
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return str(certificate), str(key)
