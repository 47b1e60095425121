#!/usr/bin/env python3
"""rankone beside flash-linear-attention (and FlashQLA and FlashKDA where they are installed) on one
GPU: the same torch tensors, the same process.

For each case and gate distribution: GPU time of a call in a CUDA graph (L2 flushed before each run,
and warm), time of eager calls and what a call costs its caller on the host, each as a median with its
20 % and 80 % quantiles; the ratio peer / rankone; and beside each time the relative RMS error against
a float64 recurrence token by token, on the last 2 heads and the first 4,096 tokens of the last
sequence of the very call that is timed. Where the peer is missing or refuses, it says so.

q and k are L2-normalised beforehand for all, log decays g and gains b are float32 and given, states
are float32, the rest is bf16, D = 128.
"""

import argparse
import dataclasses
import datetime
import functools
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ERROR_TOKENS, ERROR_HEADS, D = 4096, 2, 128
DIRECTIONS = {"forward": "forward", "both": "forward + backward", "step": "decode, one token"}


@dataclasses.dataclass(frozen=True)
class Case:
    mixer: str  # gdn: one decay a head; kda: one a key channel
    direction: str
    batch: int
    time: int
    heads: int

    def __str__(self):
        return f"{self.mixer.upper()} {DIRECTIONS[self.direction]} {self.batch}x{self.time}x{self.heads}"


CASES = {
    "gdn-forward": Case("gdn", "forward", 1, 8192, 16),
    "gdn-forward-batch": Case("gdn", "forward", 8, 2048, 8),
    "kda-forward": Case("kda", "forward", 1, 8192, 16),
    "gdn-both": Case("gdn", "both", 1, 8192, 16),
    "kda-both": Case("kda", "both", 1, 8192, 16),
    "decode": Case("gdn", "step", 64, 1, 32),
    "gdn-forward-long": Case("gdn", "forward", 1, 131072, 16),
    "gdn-forward-wide": Case("gdn", "forward", 1, 65536, 96),
}
LARGE = ("gdn-forward-long", "gdn-forward-wide")  # only where they are asked for
STARTS = ("start", "start-cold")
BOUND = -5.0
GATES = {"strong": "-30 or -0.01, even odds", "bounded": f"{BOUND:g} sigmoid(N(0, 1))",
         "typical": "logsigmoid(N(0, 1))", "none": "0"}


@dataclasses.dataclass
class Inputs:
    q: "torch.Tensor"  # [B, T, H, D], as k and v
    k: "torch.Tensor"
    v: "torch.Tensor"
    g: "torch.Tensor"  # [B, T, H] or [B, T, H, D]
    b: "torch.Tensor"  # [B, T, H]
    state: "torch.Tensor"  # [B, H, D, D], or None
    do: "torch.Tensor"  # as v, or None
    scale: float
    # For a peer that takes logits: those of b and, with bounded gates, of g; bf16.
    b_logits: "torch.Tensor" = None
    g_logits: "torch.Tensor" = None
    bound: float = BOUND


def make_inputs(case, gates, seed, device, dtype):
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator, device=device)
    rows = (case.batch, case.time, case.heads)
    unit = lambda x: torch.nn.functional.normalize(x, dim=-1).to(dtype)
    q, k, v = unit(normal(*rows, D)), unit(normal(*rows, D)), normal(*rows, D).to(dtype)
    b_logits = normal(*rows).bfloat16()
    drawn = normal(*rows, D) if case.mixer == "kda" else normal(*rows)
    if gates == "strong":
        g = torch.where(drawn < 0, torch.full_like(drawn, -30.0), torch.full_like(drawn, -0.01))
    elif gates == "bounded":
        drawn = drawn.bfloat16()
        g = BOUND * torch.sigmoid(drawn.float())
    elif gates == "typical":
        g = torch.nn.functional.logsigmoid(drawn)
    else:
        g = torch.zeros_like(drawn)
    state = normal(case.batch, case.heads, D, D) if case.direction == "step" else None
    do = normal(*rows, D).to(dtype) if case.direction == "both" else None
    b = torch.sigmoid(b_logits.float())
    return Inputs(q, k, v, g, b, state, do, D**-0.5, b_logits, drawn if gates == "bounded" else None)


# ---- What is run -------------------------------------------------------------------------------
# Each maker returns a function that puts the work on the stream and returns its results as
# {name: tensor}, and the bytes of scratch, None where they are not known.


def rankone_work(library, case, x):
    if case.direction == "step":
        call, o = library.step(x)
        return lambda: (call.run(), {"o": o, "state": x.state})[1], call.workspace_bytes
    saved = library.saved(x) if case.direction == "both" else None
    forward, o = library.forward(x, saved)
    if case.direction == "forward":
        return lambda: (forward.run(), {"o": o})[1], forward.workspace_bytes
    vjp, grads = library.vjp(x, x.do, saved)
    results = {"k": grads["e"], **{name: grads[name] for name in "qvgb"}}

    def run():
        forward.run()
        vjp.run()
        return results

    return run, max(forward.workspace_bytes, vjp.workspace_bytes)


def peer_work(peer, case, x):
    if case.direction == "both":
        return peer.forward_backward(x), None
    work = peer.step(x) if case.direction == "step" else peer.forward(x)
    return lambda: dict(zip(("o", "state"), work())), None


def expected_results(case, x):
    """What `results` of a maker must be near, on the checked part, and a function that cuts it out."""
    import exact

    tokens, heads = min(ERROR_TOKENS, case.time), min(ERROR_HEADS, case.heads)
    inputs, state = exact.part(x, tokens, heads)
    if case.direction == "both":
        # Later tokens count for nothing, so that the gradients of the first ones end there too.
        x.do[-1, tokens:] = 0
        expected = exact.gradients(inputs, x.scale, x.do[-1, :tokens, -heads:].double())
    else:
        o, last = exact.recurrence(*inputs, x.scale, state)
        expected = {"o": o} if state is None else {"o": o, "state": last}

    def cut(name, tensor):
        return tensor[-1, -heads:] if name == "state" else tensor[-1, :tokens, -heads:]

    return expected, cut


def measure(make, case, x, expected, cut, flush):
    """One row: errors, then times (none without a `flush`). Leaves x as it was."""
    import exact
    import timing

    kept = {name: getattr(x, name).clone() for name in ("state", "do") if getattr(x, name) is not None}
    try:
        run, scratch = make(case, x)
        found = run()
        errors = {n: exact.relative_error(cut(n, found[n]), expected[n]) for n in expected}
        del found
        worst = max(errors.values(), key=lambda e: math.inf if math.isnan(e) else e)
        row = {"relative_error": worst, "relative_errors": errors, "workspace_bytes": scratch}
        if flush is not None:
            if x.do is not None:
                x.do.normal_()  # also where the error wanted zeros
            row.update(timing.time_work(run, flush))
        return row
    finally:
        for name, tensor in kept.items():
            getattr(x, name).copy_(tensor)


def reason_of(error):
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


# ---- From the start of a process to the first result -------------------------------------------


def first_result(implementation, library_path, began):
    """Run in a process of its own: prints the seconds until each stage was reached as JSON."""
    marks = {}
    mark = lambda name: marks.__setitem__(name, time.time() - began)
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    mark("torch_ready")
    case = CASES["gdn-forward"]
    x = make_inputs(case, "typical", 0, torch.device("cuda"), torch.bfloat16)
    torch.cuda.synchronize()
    mark("inputs_ready")
    if implementation == "rankone":
        from rankone_library import Library

        rankone_work(Library(library_path, torch.device("cuda")), case, x)[0]()
    else:
        from peers import PEERS

        PEERS[implementation][0]().forward(x)()
    torch.cuda.synchronize()
    mark("first_result")
    print(json.dumps(marks))


def start_row(implementation, cold, options):
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as empty:
        if cold:
            environment["TRITON_CACHE_DIR"] = empty
        command = [sys.executable, __file__, "--first", implementation, "--began", repr(time.time())]
        if options.library:
            command += ["--library", options.library]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        return {"refused": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    marks = json.loads(done.stdout.strip().splitlines()[-1])
    return {"start_s": marks["first_result"], "own_s": marks["first_result"] - marks["inputs_ready"]}


# ---- Report ------------------------------------------------------------------------------------


def command_output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def facts(options, library, device):
    import torch
    import peers

    result = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": options.commit or command_output("git", "rev-parse", "--short=12", "HEAD"),
        "command": " ".join(["compare.py", *(a.split("/")[-1] for a in sys.argv[1:])]),  # files by name
        "rankone": library.version if library else None,
        **peers.versions(),
        "torch": torch.__version__,
        "triton": peers.version("triton"),
        "python": platform.python_version(),
        "seed": options.seed,
    }
    if device.type == "cuda":
        import timing

        result["gpu"] = torch.cuda.get_device_name()
        result["driver"] = command_output(
            "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
        )
        result.update(timing.ceilings())
        clocks = "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem"
        result["clocks"] = command_output("nvidia-smi", clocks, "--format=csv,noheader")
    return result


def time_text(row, key):
    t = row[key]
    return f"{t['median_us']:9.1f} ({t['low_us']:.1f}..{t['high_us']:.1f})"


HEAD = (f"{'':9} {'graph us, L2 flushed':>28} {'graph us, warm':>28} {'eager us':>30} {'host us':>8}"
        f" {'error':>8}  scratch MB")


def print_rows(title, rows):
    print(f"\n{title}")
    timed = [r for r in rows.values() if "graph" in r]
    if timed:
        print(HEAD)
    for name, row in rows.items():
        if "refused" in row:
            print(f"{name:9} {row['refused']}")
        elif "start_s" in row:
            print(f"{name:9} {row['start_s']:8.2f} s from process start, {row['own_s']:.2f} s of them its own")
        elif "graph" not in row:
            print(f"{name:9} relative error {row['relative_error']:.1e}")
        else:
            scratch = row["workspace_bytes"]
            print(f"{name:9} {time_text(row, 'graph'):>28} {time_text(row, 'graph_warm'):>28}"
                  f" {time_text(row, 'eager'):>30} {row['host_us']:8.1f} {row['relative_error']:8.1e}"
                  f"  {'' if scratch is None else f'{1e-6 * scratch:.1f}'}")
    ours = rows.get("rankone", {})
    for name, theirs in rows.items():
        if name == "rankone":
            continue
        if "graph" in ours and "graph" in theirs:
            ratio = lambda key: theirs[key]["median_us"] / ours[key]["median_us"]
            keys = ("graph", "graph_warm", "eager")
            print(f"{name} / rankone: " + ", ".join(f"{k.replace('_', ' ')} {ratio(k):.2f}" for k in keys))
        elif "start_s" in ours and "start_s" in theirs:
            print(f"{name} / rankone: {theirs['own_s'] / ours['own_s']:.1f} (their own part)")
    sys.stdout.flush()


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="cases: " + "; ".join(f"{n}: {c}" for n, c in CASES.items())
        + "; start: process start to first GDN forward; start-cold: the same, Triton's cache empty"
        " (about a minute). gates: " + "; ".join(f"{n}: g = {d}" for n, d in GATES.items()))
    parser.add_argument("--library", metavar="PATH",
                        help="librankone.so built with -DRANKONE_CUDA=ON; without it only the peer runs")
    parser.add_argument("--cases", default=",".join([*(n for n in CASES if n not in LARGE), "start"]),
                        help="comma-separated (default: %(default)s)")
    parser.add_argument("--gates", default="typical,none", help="comma-separated (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the inputs (default: %(default)s)")
    parser.add_argument("--json", metavar="PATH", help="write all numbers there")
    parser.add_argument("--commit", help="of the library, where git can not tell")
    parser.add_argument("--no-peer", action="store_true", help="rankone alone")
    parser.add_argument("--check", action="store_true",
                        help="no times: the errors of small float32 calls of a CPU library")
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.cases, options.gates = options.cases.split(","), options.gates.split(",")
    for given, known in ((options.cases, [*CASES, *STARTS]), (options.gates, GATES)):
        for name in given:
            if name not in known:
                parser.error(f"'{name}' is unknown (one of {', '.join(known)})")
    return options


def main(arguments):
    options = parse(arguments)
    sys.path.insert(0, str(HERE))
    if options.first:
        return first_result(options.first, options.library, options.began)
    import needs

    kind = "cpu" if options.check else "cuda"
    torch = needs.torch_on(kind, " (--check compares a CPU library with float64)")
    device = torch.device(kind)
    import peers

    library, notes, compared = None, [], {}
    if options.library:
        library = needs.library(options.library, device)
    else:
        notes.append("rankone is not compared: no --library given")
    if not options.check and not options.no_peer:
        compared, missing = peers.find()
        notes += missing

    def implementations(case, gates):
        """{name: maker}"""
        makers = {"rankone": functools.partial(rankone_work, library)} if library else {}
        takers = {name: peer for name, peer in compared.items() if peer.takes(case, gates)}
        return makers | {name: functools.partial(peer_work, peer) for name, peer in takers.items()}

    report = {"facts": facts(options, library, device), "notes": notes, "rows": []}
    print("\n".join(f"{key}: {value}" for key, value in report["facts"].items()))
    print("\n".join(f"note: {note}" for note in notes), flush=True)
    flush = None if options.check else torch.empty(1 << 27, dtype=torch.uint8, device=device)

    def keep(title, base, rows):
        print_rows(title, rows)
        report["rows"] += [{**base, "implementation": name, **row} for name, row in rows.items()]
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")

    for name in (n for n in options.cases if n in CASES):
        case = CASES[name]
        if options.check:
            case = dataclasses.replace(case, batch=2, time=min(case.time, 100), heads=3)
        for gates in options.gates:
            x = make_inputs(case, gates, options.seed, device, torch.float32 if options.check else torch.bfloat16)
            expected, cut = expected_results(case, x)
            rows = {}
            for implementation, make in implementations(case, gates).items():
                began = time.perf_counter()
                try:
                    rows[implementation] = measure(make, case, x, expected, cut, flush)
                    rows[implementation]["took_s"] = time.perf_counter() - began
                except Exception as error:  # a refusal is a result
                    rows[implementation] = {"refused": f"refuses: {reason_of(error)}"}
                if device.type == "cuda":
                    torch.cuda.empty_cache()
            base = {"case": name, "gates": gates, "g": GATES[gates],
                    **dataclasses.asdict(case), "d": D, "dtype": str(x.q.dtype).removeprefix("torch.")}
            keep(f"{case}, D = {D}, {base['dtype']}; gates {gates}: g = {GATES[gates]}", base, rows)
            del x, expected
    first = "gdn-forward"
    for name in (n for n in options.cases if n in STARTS and not options.check):
        rows = {i: start_row(i, name == "start-cold", options) for i in implementations(CASES[first], "typical")}
        cache = "empty" if name == "start-cold" else "as it is"
        keep(f"process start to first {CASES[first]}; Triton's cache {cache}", {"case": name}, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
