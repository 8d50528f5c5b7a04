"""Other load generators on the same load, each from a virtual environment of its own, on the client's core:

    python3 -m venv build/peers/guidellm && build/peers/guidellm/bin/pip install guidellm
    python3 -m venv build/peers/aiperf && build/peers/aiperf/bin/pip install aiperf

Their figures are those that they report. A peer that is not there is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clients import PATIENCE_S, Cores
from measure import Result, reported
from reference_server import Load, RigError, Server, on_core, serving

_VOCABULARY: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1, "sea": 2}, "unk_token": "[UNK]"},
}  # fmt: skip
_TOKENIZER = {
    "tokenizer.json": _VOCABULARY,
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "pad_token": "[UNK]"},
    "config.json": {"model_type": "gpt2"},
}  # fmt: skip


def installed(folder: Path) -> tuple[dict[str, Callable[[Load, Cores, Path], Result]], list[str]]:
    """The peers of a folder as clients, and why the others are left out."""
    found, missing = {}, []
    for name, peer in PEERS.items():
        program = folder / name / "bin" / name
        if program.exists():
            found[name] = _client(program.resolve(), peer)
        else:
            missing.append(f"{name} is not installed")
    return found, missing


Peer = Callable[
    [Path, Load, Server, Path],
    tuple[list[str], Callable[[], tuple[dict[str, float], float | None]]],
]


def _client(program: Path, peer: Peer) -> Callable[[Load, Cores, Path], Result]:
    def client(load: Load, cores: Cores, folder: Path) -> Result:
        with serving(load, cores.server, folder) as server:
            line, figures = peer(program, load, server, folder)
            tree_s = _run(line, cores.clients[0], load, folder)
        try:
            return reported(server, *figures(), tree_s)
        except (OSError, LookupError, TypeError) as error:
            output = (folder / "output.txt").read_text(errors="replace")[-2000:]
            raise RigError(f"{program.name} gave no figures: {error}\n{output}") from error

    return client


def _run(line: list[str], core: int, load: Load, folder: Path) -> float:
    """Run a peer to its end; the CPU seconds of all its processes."""
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": ""}
    with (folder / "output.txt").open("w") as output, on_core(core):
        child = subprocess.Popen(line, cwd=folder, env=environment, stdout=output, stderr=output)
    deadline, pid = time.monotonic() + load.duration_s + PATIENCE_S, 0
    while not pid:
        time.sleep(0.2)
        pid, _, usage = os.wait4(child.pid, os.WNOHANG)
        if time.monotonic() > deadline:
            child.kill()
            child.wait()
            raise RigError(f"{Path(line[0]).name} did not end")
    child.returncode = 0  # it was waited for above
    return usage.ru_utime + usage.ru_stime


def _tokenizer(folder: Path) -> Path:
    """A tokenizer whose tokens are words: none needs to be downloaded."""
    made = folder / "tokenizer"
    made.mkdir()
    for name, content in _TOKENIZER.items():
        (made / name).write_text(json.dumps(content))
    return made


def _guidellm(program: Path, load: Load, server: Server, folder: Path) -> Any:
    line = [
        str(program), "run", "--disable-console",
        f"--backend=kind=openai_http,target={server.url},model=tiny,validate_backend=false",
        f"--profile=kind=concurrent,streams={load.streams}",
        f"--constraint=kind=max_duration,seconds={load.duration_s}",
        f"--data=kind=synthetic_text,prompt_tokens=16,output_tokens={load.chunks}",
        f"--tokenizer=kind=hf_auto,model={_tokenizer(folder)}", f"--output=kind=json,path={folder / 'guidellm.json'}",
    ]  # fmt: skip

    def figures() -> tuple[dict[str, float], float | None]:
        run = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]
        ttft = run["metrics"]["time_to_first_token_ms"]["successful"]
        return {
            "mean": ttft["mean"],
            **ttft["percentiles"],
        }, None  # of gaps it has the mean of each request only

    return line, figures


def _aiperf(program: Path, load: Load, server: Server, folder: Path) -> Any:
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        f'{{"text": "tell me about the sea", "output_length": {load.chunks}}}\n' * load.streams
    )
    line = [
        str(program), "profile", "--model=tiny", f"--url={server.url}", "--endpoint-type=chat", "--streaming",
        f"--tokenizer={_tokenizer(folder)}", f"--input-file={prompts}", "--custom-dataset-type=single_turn",
        f"--concurrency={load.streams}", f"--benchmark-duration={load.duration_s}", "--use-server-token-count",
        f"--output-artifact-dir={folder / 'aiperf'}", "--ui=none",
    ]  # fmt: skip

    def figures() -> tuple[dict[str, float], float | None]:
        run: Mapping[str, Any] = json.loads(
            (folder / "aiperf" / "profile_export_aiperf.json").read_text()
        )
        ttft = run["time_to_first_token"]
        return {"mean": ttft["avg"], **ttft}, run["inter_chunk_latency"]["p99"]

    return line, figures


PEERS: dict[str, Peer] = {"guidellm": _guidellm, "aiperf": _aiperf}
