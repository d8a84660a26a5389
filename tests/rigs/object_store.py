"""An S3-like store on loopback, for histories that lie on no disk."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from moto.server import ThreadedMotoServer
from pyarrow import fs


@contextmanager
def bucket() -> Iterator[str]:
    """Start a store; the URI of a history in a bucket of its own, with all that reaches it: stores of a process have
    the same buckets."""
    name = f"bucket-{uuid.uuid4().hex}"
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        query = f"endpoint_override={quote(f'{host}:{port}', safe='')}&scheme=http&region=us-east-1"
        uri = f"s3://key:secret@{name}/history?{query}"
        made, _ = fs.FileSystem.from_uri(f"{uri}&allow_bucket_creation=true")
        made.create_dir(name)
        yield uri
    finally:
        server.stop()


def upload(folder: Path, uri: str) -> None:
    """Put the files of a directory into a store, as `aws s3 sync` would."""
    files, base = fs.FileSystem.from_uri(uri)
    for path in sorted(folder.rglob("*.parquet")):
        with files.open_output_stream(f"{base}/{path.relative_to(folder)}") as to:
            to.write(path.read_bytes())
