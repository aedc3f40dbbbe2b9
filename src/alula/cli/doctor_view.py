"""What a report shows to people: rows of short texts, for the terminal and for Markdown alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from alula.cli.doctor_components import Row, component_rows

_MARKS = {"open": "✓", "closed": "✗", "unknown": "?"}


class Block(NamedTuple):
    """One table with a heading."""

    title: str
    headers: Row
    rows: list[Row]


def blocks(report: dict[str, Any]) -> Iterator[Block]:
    """The tables of a report, the chains that were asked for last."""
    yield from overview(report)
    for name, chain in report["features"].items():
        headers = ("", "owner", "layer", "needs", "found", "evidence", "opened in")
        yield Block(name, headers, [_link_of_chain(gate) for gate in chain])
    yield from findings(report)


def chain_lines(chain: list[dict[str, Any]]) -> Iterator[str]:
    """A chain for the terminal, where a place in a file must not be broken over lines."""
    for gate in chain:
        yield f"{_MARKS[gate['verdict']]} {gate['layer']} · {gate['component']}"
        yield f"    needs  {gate['predicate']}"
        yield f"    found  {gate['observed']}"
        yield f"    at     {gate['evidence']}"
        if gate["opened_in"]:
            yield f"    opens  {gate['opened_in']}"


def findings(report: dict[str, Any]) -> Iterator[Block]:
    """What only looking longer tells: kernels without a body, and probes."""
    if report["empty_kernels"]:
        rows = [_empty_kernels(each) for each in report["empty_kernels"]]
        yield Block(
            "Kernels without a body",
            ("library", "cc", "empty here, with a body elsewhere (a warning)"),
            rows,
        )
    if report["probes"]:
        yield Block("Probes", ("", "", "s", "found"), [_probe(each) for each in report["probes"]])


def overview(report: dict[str, Any]) -> Iterator[Block]:
    """What a report says of the machine and its software as a whole."""
    return (block for block in _overview(report) if block.rows)


def _overview(report: dict[str, Any]) -> Iterator[Block]:
    machine, software = report["machine"], report["software"]
    if machine["gpus"]:
        yield Block("GPUs", ("", "name", "cc", "memory", "power", "PCIe", "notes"), _gpus(machine))
    if machine["links"]:
        yield Block("Links", ("pair", "distance", "peer access"), _links(machine))
    yield Block("System", ("", ""), _system(machine, software))
    yield Block("Compilers at run time", ("", "toolkit", "because"), _jits(software))
    capabilities = sorted({gpu["capability"] for gpu in machine["gpus"] if gpu["visible"]})
    headers = ("", "version", "built for", "device code", *capabilities)
    yield Block("Components", headers, component_rows(software, capabilities))
    if report["gates"]:
        yield Block("In the way", ("", "layer", "needs", "found"), _gates(report["gates"]))


def summary(report: dict[str, Any]) -> list[str]:
    """What is to be known before the tables."""
    machine, software = report["machine"], report["software"]
    lines = [f"assumed: {', '.join(machine['assumed'])}"] if machine["assumed"] else []
    lines += [*machine["notes"], *software["notes"]]
    lines += [f"not seen: {text}" for text in machine["platform"]["hidden"]]
    for path, owners in list(software["owned_twice"].items())[:5]:
        lines.append(f"owned twice: {path} by {' and '.join(owners)}")
    if (more := len(software["owned_twice"]) - 5) > 0:
        lines.append(f"owned twice: {more} files more (--json lists them)")
    if excluded := _excluded(report):
        lines.append(excluded)
    return lines


def printable(text: str) -> str:
    """A text whose control characters are written out: names of packages are anybody's."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _gpus(machine: dict[str, Any]) -> list[Row]:
    return [
        (
            str(gpu["index"]),
            gpu["name"],
            gpu["capability"],
            f"{gpu['memory_bytes'] / 1e9:.0f} GB" if gpu["memory_bytes"] else "",
            f"{gpu['power_watts']:.0f} W" if gpu["power_watts"] else "",
            _pcie(gpu["pcie"]),
            _gpu_notes(gpu),
        )
        for gpu in machine["gpus"]
    ]


def _pcie(pcie: dict[str, int]) -> str:
    if not pcie["width"]:
        return ""
    most = f" of Gen{pcie['generation_at_most']} x{pcie['width_at_most']}"
    return f"Gen{pcie['generation']} x{pcie['width']}{most if pcie['width_at_most'] else ''}"


def _gpu_notes(gpu: dict[str, Any]) -> str:
    notes = []
    if not gpu["visible"]:
        notes.append("hidden")
    if gpu["mig"] == "on":
        notes.append("MIG")
    if gpu["processes"]:
        notes.append(f"in use by {gpu['processes']}")
    if gpu["sm_clock_mhz_at_most"]:
        notes.append(f"{gpu['sm_clock_mhz']} of {gpu['sm_clock_mhz_at_most']} MHz")
    if gpu["bar1_bytes"] and gpu["bar1_bytes"] < gpu["memory_bytes"] // 2:
        notes.append("no resizable BAR")
    return ", ".join(notes)


def _links(machine: dict[str, Any]) -> list[Row]:
    """Pairs that are alike stand in one row: eight GPUs have 28."""
    alike: dict[Row, list[str]] = {}
    for link in machine["links"]:
        peer = ", ".join(
            f"{kind} {link[kind]}" for kind in ("read", "write", "atomics") if link[kind]
        )
        alike.setdefault((link["distance"] or machine["interconnect"], peer), []).append(
            f"{link['first']}–{link['second']}"
        )
    return [
        (" ".join(pairs) if len(pairs) <= 6 else f"{len(pairs)} pairs", distance, peer)
        for (distance, peer), pairs in alike.items()
    ]


def _system(machine: dict[str, Any], software: dict[str, Any]) -> list[Row]:
    driver, platform = machine["driver"], machine["platform"]
    cuda = f", CUDA {driver['cuda']}" if driver["cuda"] else ""
    module = f", {driver['module']} kernel module" if driver["module"] else ""
    rows = [
        ("driver", f"{driver['version']}{cuda}{module}" if driver["version"] else "none was seen"),
        ("NVSwitch", {True: "yes", False: "no", None: ""}[machine["nvswitch"]]),
        ("system", " ".join(filter(None, (platform["system"], platform["kernel"])))),
        ("container", platform["container"]),
        ("IOMMU", platform["iommu"]),
        ("ACS", platform["acs"]),
        ("environment", f"{software['environment']} (Python {software['python'] or 'unknown'})"),
    ]
    rows += [
        ("toolkit", f"{toolkit['version'] or 'version unknown'} in {toolkit['path']}")
        for toolkit in software["toolkits"]
    ]
    return [row for row in rows if row[1]]


def _jits(software: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for jit in software["jits"]:
        toolkit = jit["toolkit"]
        version = (toolkit["version"] or "version unknown") if toolkit else "none"
        rows.append((jit["name"], version, jit["because"]))
    return rows


def _gates(gates: list[dict[str, Any]]) -> list[Row]:
    return [
        (
            gate["component"],
            gate["layer"],
            f"{gate['predicate']} ({gate['feature']})",
            gate["observed"],
        )
        for gate in gates
    ]


def _link_of_chain(gate: dict[str, Any]) -> Row:
    return (
        _MARKS[gate["verdict"]],
        gate["component"],
        gate["layer"],
        gate["predicate"],
        gate["observed"],
        gate["evidence"],
        gate["opened_in"],
    )


def _empty_kernels(found: dict[str, Any]) -> Row:
    names = found["kernels"]
    text = f"{len(names)} of {found['of']} kernels"
    text += f": {', '.join(names[:3])}{' …' if len(names) > 3 else ''}" if names else ""
    if found["images_not_read"]:
        text += f"; {found['images_not_read']} compressed images were not read"
    return Path(found["library"]).name, found["capability"], text


def _probe(outcome: dict[str, Any]) -> Row:
    found = [*outcome["findings"]]
    found += [f"{name} {value}" for name, value in outcome["measured"].items()]
    if outcome["stuck"]:
        found.append(f"processes {', '.join(map(str, outcome['stuck']))} could not be ended")
    return outcome["name"], outcome["ending"], f"{outcome['seconds']:.1f}", "\n".join(found)


def _excluded(report: dict[str, Any]) -> str:
    """How many lists of architectures leave out a visible GPU."""
    gpus = {gpu["capability"] for gpu in report["machine"]["gpus"] if gpu["visible"]}
    texts = []
    for capability in sorted(filter(None, gpus)):
        major, _, minor = capability.partition(".")
        out = [
            each
            for each in report["software"]["allow_lists"]
            if int(major) not in each["majors"] and int(major + minor) not in each["architectures"]
        ]
        if out:
            total = len(report["software"]["allow_lists"])
            texts.append(f"{len(out)} of {total} lists in Python source leave out {capability}")
    return "; ".join(texts) + (" (--json lists them)" if texts else "")
