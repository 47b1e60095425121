#!/usr/bin/env python3
"""The figures that the CPU kernels are to reach, measured: prints the table and writes results/DATE-CPU.json.

Needs Python 3.9 and the program rankone; nothing is built here. Every row runs `rankone bench` (and, where it is
there, rankone_ggml_peer) and keeps what they wrote. Rows that this machine or build has nothing for are skipped, and
say why."""

import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HEADS = 32
FEW = 16
LENGTHS = (1, 4, 16, 64, 256, 512, 2048)
KLA_10M = ("--config", "configs/kla-tiny.json", "--set", "model.hidden_size=320", "--set", "model.num_heads=5",
           "--set", "model.intermediate_size=832", "--set", "model.num_hidden_layers=7")


class Skipped(Exception):
    pass


def cpu():
    info = {}
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return {"model": platform.processor() or platform.machine(), "flags": []}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        info.setdefault(name.strip(), value.strip())
    wanted = re.compile(r"^(sse4_2|avx.*|fma|f16c|amx.*)$")
    flags = [flag for flag in info.get("flags", "").split() if wanted.match(flag)]
    return {
        "model": info.get("model name", platform.machine()),
        "family": " ".join(info.get(key, "?") for key in ("vendor_id", "cpu family", "model", "stepping")),
        "flags": flags,
        "processors": os.cpu_count(),
    }


def output_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def compiler_of(program):
    found = re.search(rb"(GCC: \([^)]*\) [0-9.]+|clang version [0-9.]+)", pathlib.Path(program).read_bytes())
    return found.group(1).decode() if found else "unknown"


class Machine:
    """Runs the programs and keeps all they measured."""

    def __init__(self, options):
        self.options = options
        self.prefix = shlex.split(options.prefix)
        self.measurements = []
        self.help = {}

    def amx(self):
        return "amx_bf16" in cpu()["flags"]

    def threads(self):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    def needs_option(self, verb, option):
        if verb not in self.help:
            self.help[verb] = output_of([self.options.rankone, "bench", verb, "--help"])
        if option not in self.help[verb]:
            raise Skipped(f"this rankone has no bench {verb} {option}")

    def run(self, program, arguments, isa="", label=""):
        """The rows of one command, in ns per token-head where they have one."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [*self.prefix, program, *map(str, arguments), "--json", file.name]
            environment = dict(os.environ)
            if isa:
                environment["RANKONE_ISA"] = isa
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
            if done.returncode != 0:
                raise Skipped((done.stderr or done.stdout).strip().splitlines()[-1])
            rows = json.loads(pathlib.Path(file.name).read_text())
        shown = " ".join((f"RANKONE_ISA={isa}" if isa else "", pathlib.Path(program).name, *map(str, arguments)))
        for row in rows:
            row["command"] = shown.strip()
            if label:
                row["label"] = label
        self.measurements += rows
        return rows

    def forward(self, tokens, mixer="gdn", isa="", precision="", heads=HEADS, threads=1, label="", state=False,
                beside=""):
        arguments = ["bench", "recurrence", "--mixer", mixer, "--shape", f"1x{tokens}x{heads}x128x128", "--threads",
                     threads, "--direction", "forward"]
        if state or tokens <= FEW:  # a few tokens go on from a state: that of zeros would be less work
            self.needs_option("recurrence", "--state ")
            arguments += ["--state", "yes"]
        if precision:
            self.needs_option("recurrence", "--precision")
            arguments += ["--precision", precision]
        if beside:
            arguments += ["--beside", beside]
        return self.run(self.options.rankone, arguments, isa, label)[0]

    def decode(self, isa="", state="", heads=HEADS, threads=1, label=""):
        arguments = ["bench", "decode", "--mixer", "gdn", "--shape", f"1x512x{heads}x128x128", "--threads", threads]
        if state:
            self.needs_option("decode", "--state-dtype")
            arguments += ["--state-dtype", state]
        return self.run(self.options.rankone, arguments, isa, label)[0]

    def ggml(self, tokens, gate="scalar", threads=1, busy=False, isa=""):
        if not self.options.ggml_peer:
            raise Skipped("no rankone_ggml_peer (CMake found no ggml)")
        arguments = ["--tokens", tokens, "--gate", gate, "--threads", threads] + (["--busy"] if busy else [])
        rows = self.run(self.options.ggml_peer, arguments, isa)
        return {row["kernel"].split("-")[0]: row for row in rows}


class Busy:
    """Keeps the last processor of those allowed busy with another process."""

    def __enter__(self):
        last = max(os.sched_getaffinity(0))
        self.process = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{last}}})\n"
                                         "while True: pass"])

    def __exit__(self, *unused):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def times(row):
    return row["ns_per_token_head"]


def row_of(row, limit, peer=None):
    """A row of the table that is one time."""
    return {"value": times(row), "unit": "ns per token-head", "limit": limit, "reached": times(row) <= limit,
            "spread": [row["low_us"] / row["median_us"], row["high_us"] / row["median_us"]],
            "of_peak": row["fraction_of_limit"], "peak": row["limit"], "kernel": row["kernel"], "peer": peer}


def peer_time(machine, tokens, gate="scalar"):
    try:
        return times(machine.ggml(tokens, gate)["ggml"])
    except Skipped:
        return None


def ratio(value, limit, at_least=False, unit="x", detail=""):
    return {"value": value, "unit": unit, "limit": limit, "at_least": at_least,
            "reached": value >= limit if at_least else value <= limit, "detail": detail}


def needs_amx(machine):
    if not machine.amx():
        raise Skipped("no AMX on this machine")


def needs_threads(machine, count=2):
    if machine.threads() < count:
        raise Skipped(f"needs {count} processors")


def tiles(machine, tokens, precision, limit, mixer="gdn", gate="scalar"):
    needs_amx(machine)
    return row_of(machine.forward(tokens, mixer, precision=precision), limit, peer_time(machine, tokens, gate))


def vjp(machine, isa="", precision=""):
    """The vjp computes the states again, so its time is that of forward and backward; both rows are of one run."""
    arguments = ["bench", "recurrence", "--mixer", "gdn", "--shape", f"1x2048x{HEADS}x128x128", "--threads", 1]
    if precision:
        machine.needs_option("recurrence", "--precision")
        arguments += ["--precision", precision]
    forward, backward = machine.run(machine.options.rankone, arguments, isa)
    return ratio(times(backward) / times(forward), 3.5, unit="x forward",
                 detail=f"{times(backward):.0f} over {times(forward):.0f} ns per token-head")


def over(machine, mixer, base, precision="", isa=""):
    """Both in one process, call by call in turn: what the machine does meanwhile happens to both. The pages that a
    process is given move the ratio by a percent, so it is the median of several processes."""
    machine.needs_option("recurrence", "--beside")
    rows = [machine.forward(512, mixer, isa, precision, beside=base) for _ in range(7)]
    rows.sort(key=lambda row: row["over_beside"])
    row = rows[len(rows) // 2]
    low, high = (100 * (rows[i]["over_beside"] - 1) for i in (0, -1))
    each = times(row)
    return ratio(100 * (row["over_beside"] - 1), 4, unit="%",
                 detail=f"{each:.0f} over {each / row['over_beside']:.0f} ns per token-head; {low:.1f} to {high:.1f} %")


def scaling(machine, what):
    needs_threads(machine)
    pairs = [(times(what(1)), times(what(2))) for _ in range(3)]
    value = statistics.median(one / two for one, two in pairs)
    return ratio(value, 1.85, True, detail=f"{pairs[0][0]:.0f} to {pairs[0][1]:.0f} ns per token-head")


def busy_decode(machine):
    needs_threads(machine)
    quiet = times(machine.decode(threads=2))
    with Busy():
        busy = times(machine.decode(threads=2, label="busy"))
    detail = f"{quiet:.0f} to {busy:.0f} ns per token-head"
    try:
        ggml = [times(machine.ggml(1, threads=2, busy=busy)["ggml"]) for busy in (False, True)]
        detail += f"; ggml {ggml[0]:.0f} to {ggml[1]:.0f}"
    except Skipped:
        pass
    return ratio(busy / quiet, 2.5, unit="x slower", detail=detail)


def training(machine):
    rows = machine.run(machine.options.rankone, ["bench", "train", *KLA_10M, "--shape", "1x1024"])
    row = rows[0]
    if "products_fraction" not in row:
        raise Skipped("this rankone does not time the matrix products of a step")
    return ratio(100 * row["products_fraction"], 55, True, "% of its products alone",
                 f"{row['tokens_per_s']:.0f} tokens/s, {row['parameters'] / 1e6:.1f}M parameters, "
                 f"{row['threads']} threads")


# name, what it is, how it is measured
ROWS = [
    ("decode", "decode T=1, f32 state", lambda m: row_of(m.decode(), 2000, peer_time(m, 1))),
    ("decode-bf16", "decode T=1, bf16 state", lambda m: row_of(m.decode(state="bf16"), 1300)),
    ("t4", "T=4", lambda m: row_of(m.forward(4), 1000, peer_time(m, 4))),
    ("f32-512", "prefill T=512, f32 AVX-512", lambda m: row_of(m.forward(512, isa="avx512"), 950, peer_time(m, 512))),
    ("f32-2048", "prefill T=2048, f32 AVX-512",
     lambda m: row_of(m.forward(2048, isa="avx512"), 950, peer_time(m, 2048))),
    ("bf16x3-512", "prefill T=512, AMX bf16x3", lambda m: tiles(m, 512, "bf16x3", 550)),
    ("bf16x3-2048", "prefill T=2048, AMX bf16x3", lambda m: tiles(m, 2048, "bf16x3", 550)),
    ("bf16-512", "prefill T=512, AMX bf16", lambda m: tiles(m, 512, "bf16", 300)),
    ("bf16-2048", "prefill T=2048, AMX bf16", lambda m: tiles(m, 2048, "bf16", 300)),
    ("kda-bf16x3", "KDA prefill T=512, AMX bf16x3", lambda m: tiles(m, 512, "bf16x3", 700, "kda", "channel")),
    ("kda-f32", "KDA prefill T=512, f32 AVX-512",
     lambda m: row_of(m.forward(512, "kda", isa="avx512"), 1100, peer_time(m, 512, "channel"))),
    ("avx2", "prefill T=512, AVX2", lambda m: row_of(m.forward(512, isa="avx2"), 1800)),
    ("vjp-bf16x3", "vjp T=2048, AMX bf16x3", lambda m: (needs_amx(m), vjp(m, precision="bf16x3"))[1]),
    ("vjp-f32", "vjp T=2048, f32 AVX-512", lambda m: vjp(m, isa="avx512")),
    ("pgdn", "PGDN over GDN, forward T=512", lambda m: over(m, "pgdn", "gdn")),
    ("pkda", "PKDA over KDA, forward T=512", lambda m: over(m, "pkda", "kda")),
    ("two-threads-4", "two threads over one, T=512, H=4",
     lambda m: scaling(m, lambda threads: m.forward(512, heads=4, threads=threads))),
    ("two-threads-32", "two threads over one, T=512, H=32",
     lambda m: scaling(m, lambda threads: m.forward(512, threads=threads))),
    ("two-threads-decode-4", "two threads over one, decode, H=4",
     lambda m: scaling(m, lambda threads: m.decode(heads=4, threads=threads))),
    ("two-threads-decode", "two threads over one, decode, H=32",
     lambda m: scaling(m, lambda threads: m.decode(threads=threads))),
    ("busy", "second core busy, decode on 2 threads", busy_decode),
    ("train", "training step, KLA of 10M, T=1024", training),
]


def write_results(machine, rows):
    """Adds what was measured to the results file; of other rows it keeps what it holds."""
    processor = cpu()
    today = datetime.date.today().isoformat()
    short = re.sub(r"[^a-z0-9]+", "-", processor["model"].lower()).strip("-")
    out = pathlib.Path(machine.options.out or HERE / "results" / f"{today}-{short}.json")
    kept = json.loads(out.read_text()) if out.exists() else {"rows": [], "measurements": []}
    names = {row["name"] for row in rows}
    order = [name for name, _, _ in ROWS]
    commands = {(row["command"], row.get("label")) for row in machine.measurements}
    result = {
        "date": today,
        "cpu": processor,
        "system": platform.platform(),
        "commit": machine.options.commit or output_of(["git", "rev-parse", "--short=12", "HEAD"]) or "unknown",
        "compiler": compiler_of(machine.options.rankone),
        "prefix": machine.options.prefix,
        "rows": sorted([row for row in kept["rows"] if row["name"] not in names] + rows,
                       key=lambda row: order.index(row["name"])),
        "measurements": [row for row in kept["measurements"] if (row["command"], row.get("label")) not in commands]
                        + machine.measurements,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    return out


def curves(machine, pattern):
    """Measurements of every kernel and peer over the length of the sequence, for plot.py."""
    kernels = [("baseline", "baseline", ""), ("avx2", "avx2", ""), ("avx512", "avx512", "")]
    if machine.amx():
        kernels += [("AMX bf16x3", "", "bf16x3"), ("AMX bf16", "", "bf16")]
    for label, isa, precision in kernels:
        if not fnmatch.fnmatch("curve-" + label.split()[-1], pattern):
            continue
        for tokens in LENGTHS:
            if precision and tokens < 16:
                continue
            try:
                row = (machine.decode(isa, label="curve " + label) if tokens == 1 else
                       machine.forward(tokens, isa=isa, precision=precision, label="curve " + label,
                                       state=True))
                print(f"curve {label:12} T {tokens:5} {times(row):8.0f} ns per token-head", flush=True)
            except Skipped as reason:
                print(f"curve {label:12} T {tokens:5} skipped: {reason}", flush=True)
    if fnmatch.fnmatch("curve-ggml", pattern):
        for tokens in LENGTHS:
            try:
                row = machine.ggml(tokens)["ggml"]
                row["label"] = "curve ggml"
                print(f"curve {'ggml':12} T {tokens:5} {times(row):8.0f} ns per token-head", flush=True)
            except Skipped as reason:
                print(f"curve {'ggml':12} T {tokens:5} skipped: {reason}", flush=True)


def show(number):
    return f"{number:,.0f}" if number >= 100 else f"{number:.2f}"


def line_of(row):
    if "skipped" in row:
        return f"| {row['case']} | skipped: {row['skipped']} | | | | |"
    bound = (">= " if row.get("at_least") else "<= ") + show(row["limit"])
    peak = f"{100 * row['of_peak']:.0f} % of {row['peak']}" if "of_peak" in row else row.get("detail", "")
    peer = f"{row['peer']:,.0f} ({row['peer'] / row['value']:.1f} x)" if row.get("peer") else ""
    return (f"| {row['case']} | {show(row['value'])} {row['unit']} | {bound} | {'yes' if row['reached'] else 'no'} | "
            f"{peak} | {peer} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rankone", default=str(ROOT / "build/apps/rankone"), help="the program")
    parser.add_argument("--ggml-peer", default="", help="rankone_ggml_peer; default: beside the program, if built")
    parser.add_argument("--prefix", default="", help='before every command, such as "taskset -c 2,3"')
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="PATTERN",
                        help="only these rows (names of --list) and curves (curve-avx2, curve-ggml ...)")
    parser.add_argument("--commit", default="", help="of the program, where this is no checkout of it")
    parser.add_argument("--out", help="the results file; what it holds of other rows is kept")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and exit")
    parser.add_argument("--show", metavar="FILE", help="print the table of a results file and exit")
    options = parser.parse_args()
    heading = ("| case | measured | to reach | reached | fraction of the peak, or of what | ggml, same run |\n"
               "|---|---|---|---|---|---|")
    if options.list:
        print("\n".join(f"{name:20} {case}" for name, case, _ in ROWS))
        return 0
    if options.show:
        try:
            lines = [line_of(row) for row in json.loads(pathlib.Path(options.show).read_text())["rows"]]
        except (OSError, ValueError, KeyError, TypeError) as reason:
            print(f"table.py: {options.show} is no results file of table.py: {reason!r}", file=sys.stderr)
            return 2
        print("\n".join([heading, *lines]))
        return 0
    if not os.access(options.rankone, os.X_OK):
        print(f"table.py: {options.rankone} is no program (build it, or name one with --rankone)", file=sys.stderr)
        return 2
    options.rankone = str(pathlib.Path(options.rankone).resolve())
    if not options.ggml_peer:
        beside = pathlib.Path(options.rankone).parents[1] / "bench/cpu/rankone_ggml_peer"
        options.ggml_peer = str(beside) if beside.exists() else ""

    machine = Machine(options)
    rows = []
    print(heading, flush=True)
    for name, case, measure in ROWS:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in options.rows):
            continue
        try:
            row = {"name": name, "case": case, **measure(machine)}
        except Skipped as reason:
            row = {"name": name, "case": case, "skipped": str(reason)}
        rows.append(row)
        print(line_of(row), flush=True)
        write_results(machine, rows)
    for pattern in options.rows:
        curves(machine, pattern)

    out = write_results(machine, rows)
    print(f"written: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
