"""llama.cpp as a peer: a server in a process of its own, asked for greedy text over its loopback port.

An abort inside llama.cpp ends that process and becomes a `LlamaCrashed` with the last lines it wrote; it never
reaches the caller. The server is the one in `xllamacpp`, or a llama-server binary. Used by
`tests/test_llama_cpp.py` and `bench/decode.py`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STATISTICS = re.compile(r"#calls\(b,g,a\) = +\d+ +(\d+) .*dur\(b,g,a\) = [\d.]+, ([\d.]+),")
"""llama.cpp's line about a draft at the end of a request: drafts made so far, milliseconds spent in them."""

TELLING = re.compile(r" E |\.cpp:\d+: |Error:|what\(\)")


class LlamaCrashed(RuntimeError):
    """The server refused to start or died; the message ends with what it said last."""


@dataclass(frozen=True)
class Completion:
    """What one greedy request gave back."""

    tokens: list[int]
    text: str
    drafted: int
    """Verified draft tokens, `draft_n`; 0 without a draft."""
    accepted: int
    """`draft_n_accepted`."""
    prompt_s: float
    decode_s: float
    """First token excluded: it comes from the prompt."""


@dataclass(frozen=True)
class Settings:
    """How the server is started."""

    target: str
    draft: str
    n_max: int
    threads: int
    context: int
    batch: int
    """Rows of a target pass at most, 0 for llama.cpp's default."""
    port: int
    kind: str = "DFLASH"
    """How it drafts: `DFLASH`, or `DSPARK` for a draft with a Markov head."""


class LlamaServer:
    """A running llama.cpp with one target and at most one draft. Use it as a context manager.

    `spin` leaves its threads spinning between operations, as llama.cpp does by itself; without it they sleep, which on
    a shared machine is many times faster. Raises LlamaCrashed when the files do not load.
    """

    def __init__(
        self,
        target: Path,
        draft: Path | None = None,
        *,
        n_max: int = 7,
        threads: int = 2,
        context: int = 2048,
        batch: int = 0,
        spin: bool = False,
        binary: Path | None = None,
        kind: str = "DFLASH",
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = Settings(
            str(target), str(draft or ""), n_max, threads, context, batch, port, kind
        )
        own = [sys.executable, __file__, json.dumps(asdict(settings))]
        self.address = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self.process = subprocess.Popen(
            own if binary is None else [str(binary), *arguments(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env=os.environ
            | {"GGML_NO_BACKTRACE": "1"}
            | ({} if spin else {"OMP_WAIT_POLICY": "passive"}),
        )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Ask for its health until it is well or dead."""
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.address}/health", timeout=60):
                    return
            except OSError:  # not listening yet, or 503 while it loads
                time.sleep(0.05)
        raise self.crash()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; safe to call twice."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.log):
            if stream is not None:
                stream.close()

    def said(self) -> list[str]:
        """The lines it has written so far."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace").splitlines()

    def crash(self) -> LlamaCrashed:
        """The error that says how the process ended and what it wrote last."""
        code = self.process.wait(timeout=60)
        lines = self.said()
        self.close()
        telling = [line for line in lines if TELLING.search(line)]
        return LlamaCrashed(f"llama.cpp ended with {code}: " + " | ".join((telling or lines)[-6:]))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer to `body`."""
        request = urllib.request.Request(
            self.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.loads(answer.read())  # type: ignore[no-any-return]
        except urllib.error.HTTPError as error:
            raise LlamaCrashed(f"{path}: {error.code} {error.read().decode()[:300]}") from error
        except OSError as error:
            raise self.crash() from error

    def tokenize(self, text: str) -> list[int]:
        """llama.cpp's token ids of `text`, special tokens recognised, none added."""
        return list(self.post("/tokenize", {"content": text, "parse_special": True})["tokens"])

    def complete(
        self, prompt: Sequence[int] | str, max_new: int, *, ignore_eos: bool = False
    ) -> Completion:
        """`max_new` greedy tokens after `prompt` (token ids, or text that llama.cpp tokenises)."""
        body = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "n_predict": max_new,
            "temperature": 0.0,
            "top_k": 1,
            "repeat_penalty": 1.0,
            "cache_prompt": False,
            "return_tokens": True,
            "ignore_eos": ignore_eos,
        }
        answer = self.post("/completion", body)
        times = answer["timings"]
        return Completion(
            tokens=answer["tokens"],
            text=answer["content"],
            drafted=times.get("draft_n", 0),
            accepted=times.get("draft_n_accepted", 0),
            prompt_s=times["prompt_ms"] / 1000,
            decode_s=times["predicted_ms"] / 1000,
        )

    def draft_ms(self) -> float | None:
        """Milliseconds of one draft over all requests so far, None if it has not said."""
        found = [m for m in map(STATISTICS.search, self.said()) if m]
        return float(found[-1][2]) / int(found[-1][1]) if found else None


def arguments(s: Settings) -> list[str]:
    """`s` as arguments of the llama-server binary."""
    words = [
        "-m",
        s.target,
        "-c",
        s.context,
        "-t",
        s.threads,
        "-tb",
        s.threads,
        "-np",
        1,
        "--no-warmup",
        "-lv",
        4,
    ]
    words += ["--host", "127.0.0.1", "--port", s.port, "--cache-ram", 0, "-fit", "off"]
    if s.batch:
        words += ["-ub", s.batch]
    if s.draft:
        words += [
            "-md",
            s.draft,
            "--spec-type",
            f"draft-{s.kind.lower()}",
            "--spec-draft-n-max",
            s.n_max,
        ]
        words += [
            "--spec-draft-n-min",
            0,
            "--spec-draft-p-min",
            0.0,
            "-td",
            s.threads,
            "-tbd",
            s.threads,
        ]
    return [str(w) for w in words]


def serve(s: Settings) -> None:
    """Load with xllamacpp, and wait until the other side closes our input."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path, p.port = s.target, s.port
    p.n_ctx, p.n_parallel, p.warmup, p.verbosity = s.context, 1, False, 4
    p.n_gpu_layers, p.fit_params, p.cache_ram_mib = 0, False, 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = s.threads
    if s.batch:
        p.n_ubatch = s.batch
    if s.draft:
        kinds = xllamacpp.common_speculative_type
        p.speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_DRAFT_{s.kind}")]
        draft = p.speculative.draft
        draft.mparams.path = s.draft
        draft.n_max, draft.n_min, draft.p_min = s.n_max, 0, 0.0
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = s.threads
    server = xllamacpp.Server(p)
    assert server.listening_address.endswith(f":{s.port}")
    sys.stdin.buffer.read()
    os._exit(0)  # its destructor waits for requests that nobody will send


if __name__ == "__main__":
    serve(Settings(**json.loads(sys.argv[1])))
