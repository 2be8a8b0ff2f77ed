"""The machine and the libraries that numbers were measured with."""

import platform
from pathlib import Path

import torch
import transformers


def environment(device: torch.device) -> dict[str, str]:
    """Return the device, its threads, and the versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": f"{device.type} {name}".strip(),
        "threads": str(torch.get_num_threads()),
    }


def processor() -> str:
    """Return the processor's model name where Linux tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(models), platform.processor())
