"""How long `umdump` takes for a large capture, and in how much memory: `python -m tests.bench.umdump [PACKETS]`.

Half of the packets are on ever new sessions and topics, so every table is full long before the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.builders.large_capture import RULE, write_capture


def main() -> None:
    packets = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.pcap"
        write_capture(path, packets)
        for options in (["--summary"], ["--follow-topic", "none"], []):
            command = [sys.executable, "-m", "dro.tools.umdump.main", "--decode-as", RULE, *options, str(path)]
            began = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            took = time.monotonic() - began
            shown = " ".join(options) or "packets"
            sys.stdout.write(f"{shown}: {packets} packets in {took:.1f} s ({packets / took:.0f} per second), "
                             f"peak memory {usage.ru_maxrss / 1024:.0f} MiB, status {status}\n")  # fmt: skip
            sys.stdout.flush()


if __name__ == "__main__":
    main()
