"""What the scripts of this folder need before they can start. Where it is missing, one line and status 2."""

import pathlib
import sys


def stop(problem):
    print(f"{pathlib.Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
    sys.exit(2)


def torch_on(kind, hint=""):
    """The torch module, where it has a device of this kind ("cuda" or "cpu")."""
    try:
        import torch
    except ImportError:
        stop("this python has no torch (bench/gpu/README.md says which one it takes)")
    if kind == "cuda" and not torch.cuda.is_available():
        stop(f"torch finds no CUDA GPU{hint}")
    return torch


def library(path, device):
    """librankone at `path` with a context on `device`, a torch.device."""
    from rankone_library import Failure, Library

    try:
        return Library(path, device)
    except (OSError, AttributeError, Failure) as error:
        stop(f"--library {path}: {error}")
