"""A hub on this machine: one repository's folder by the addresses that huggingface_hub asks, and a list of what it was asked for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".pt")
"""Files that the hub keeps as blobs named by their sha256."""


def blob_name(path: Path) -> str:
    """The name under which the hub knows a file's bytes."""
    raw = path.read_bytes()
    if path.suffix in LARGE:
        return hashlib.sha256(raw).hexdigest()
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """The addresses below one repository."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def reply(self, body: bytes, status: int = 200, **headers: str) -> None:
        """An answer; without its body where only the head was asked."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def entry(self, path: Path) -> dict[str, Any]:
        """A file or folder as the tree shows it."""
        name = str(path.relative_to(self.server.root))
        if path.is_dir():
            return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
        size, oid = path.stat().st_size, blob_name(path)
        lfs = {"lfs": {"oid": oid, "size": size, "pointerSize": 1}} if path.suffix in LARGE else {}
        return {"type": "file", "oid": oid[:40], "size": size, "path": name} | lfs

    def do_GET(self) -> None:
        """Serve."""
        address = urlsplit(self.path)
        path, root = unquote(address.path), self.server.root
        api, files = f"/api/models/{self.server.name}", f"/{self.server.name}/resolve/{COMMIT}/"
        if path.startswith(f"{api}/tree/{COMMIT}"):
            folder = root / path.removeprefix(f"{api}/tree/{COMMIT}").strip("/")
            deep = "recursive=true" in address.query.lower()
            found = sorted(folder.rglob("*") if deep else folder.glob("*"))
            self.reply(json.dumps([self.entry(p) for p in found]).encode())
        elif path.startswith(api):
            self.reply(json.dumps({"id": self.server.name, "sha": COMMIT, "siblings": []}).encode())
        elif path.startswith(files) and (root / path.removeprefix(files)).is_file():
            file = root / path.removeprefix(files)
            if self.command == "GET":
                self.server.served.append(path.removeprefix(files))
            self.reply(file.read_bytes(), X_Repo_Commit=COMMIT, ETag=f'"{blob_name(file)}"')
        else:
            self.reply(b"", 404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Silent."""


class Hub(ThreadingHTTPServer):
    """The server of one repository `name` whose files lie in `root`."""

    def __init__(self, name: str, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name, self.root = name, root
        self.served: list[str] = []
        """Every file whose bytes were sent."""

    @property
    def address(self) -> str:
        """What HF_ENDPOINT names."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def hub_of(name: str, root: Path) -> Iterator[Hub]:
    """A running hub."""
    hub = Hub(name, root)
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    yield hub
    hub.shutdown()
    thread.join()
    hub.server_close()
