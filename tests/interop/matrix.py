"""The interoperability matrix: which cells there are, which of them cover every pair, and how results read as a table.

A cell is one operation under one combination of the other factors. Not here: how a cell is run (peer.cpp, wire.py, and
cases_interop.py of tests/e2e).
"""
import dataclasses
import itertools
import random

OPERATIONS = {
    "rc": ("send", "send_imm", "send_inv", "send_inline", "send_srq", "send_rnr", "write", "write_imm", "write_window1",
           "write_window2", "read", "cmp_swap", "fetch_add", "send_too_long", "write_bad_rkey", "read_bad_rkey"),
    "uc": ("send", "send_imm", "send_inline", "send_srq", "write", "write_imm"),
    "ud": ("send", "send_imm", "send_inline", "send_srq"),
    "cm": ("connect", "connect_words", "end_by_passive", "at_once", "reject", "no_listener", "sidr", "sidr_reject", "sidr_no_listener"),
}
CORE = {("rc", "send"), ("rc", "send_rnr"), ("rc", "write"), ("rc", "write_imm"), ("rc", "read"), ("rc", "fetch_add"), ("rc", "read_bad_rkey"),
        ("uc", "send"), ("uc", "write"), ("ud", "send"), ("ud", "send_imm"), ("cm", "connect"), ("cm", "sidr")}
FACTORS = {
    "operation": tuple((service, operation) for service, names in OPERATIONS.items() for operation in names),
    "ip": (4, 6),
    "requester": ("we", "peer"),
    "faults": ("clean", "loss", "duplicate", "reorder"),
    "mtu": (256, 512, 1024, 2048, 4096),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    operation: tuple
    ip: int
    requester: str
    faults: str
    mtu: int

    def line(self, seed):
        """As peer.cpp reads it; we are the driver."""
        service, operation = self.operation
        requester = "driver" if self.requester == "we" else "server"
        return f"service={service} op={operation} ip={self.ip} requester={requester} faults={self.faults} mtu={self.mtu} seed={seed}"

    def __str__(self):
        return f"{'/'.join(self.operation)}/ip{self.ip}/{self.requester}/{self.faults}/{self.mtu}"


@dataclasses.dataclass(frozen=True)
class Port:
    """A kind of port: `versions` says which IP versions one NIC has at a time."""
    name: str
    title: str
    is_core: bool = True
    max_mtu: int = 4096
    versions: tuple = ((4, 6),)

    def has(self, cell):
        # Two ends that connect agree on their path MTU themselves.
        return cell.mtu <= self.max_mtu and (not self.is_core or cell.operation in CORE) and (cell.operation[0] != "cm" or cell.mtu == 1024)

    def full(self):
        return [cell for cell in (Cell(*values) for values in itertools.product(*FACTORS.values())) if self.has(cell)]


PORTS = {port.name: port for port in (Port("af_packet", "AF_PACKET", is_core=False), Port("tap", "TAP"), Port("af_xdp", "AF_XDP", max_mtu=2048),
                                      Port("udp", "UDP sockets", versions=((4,), (6,))))}


def pairs(cell):
    values = dataclasses.astuple(cell)
    return {((i, values[i]), (j, values[j])) for i, j in itertools.combinations(range(len(values)), 2)}


def covering(port):
    """Every pair of values of two factors, and every operation clean in both roles; a fixed choice."""
    dice = random.Random(4791)
    everything = port.full()
    clean = [cell for cell in everything if cell.faults == "clean"]
    chosen = [dice.choice([cell for cell in clean if (cell.operation, cell.requester) == both])
              for both in dict.fromkeys((cell.operation, cell.requester) for cell in clean)]
    open_pairs = set().union(*map(pairs, everything)) - set().union(*map(pairs, chosen))
    while open_pairs:
        best = max(dice.sample(everything, min(400, len(everything))), key=lambda cell: len(pairs(cell) & open_pairs))
        if gained := pairs(best) & open_pairs:
            chosen.append(best)
            open_pairs -= gained
    return chosen


def entry(found):
    if not found:
        return ""
    good = sum(not finding for _, finding in found)
    theirs = sum(deviation(cell, finding) is not None for cell, finding in found)
    text = f"{good}/{len(found)}" + (f", {theirs} (rxe)" if theirs else "")
    return text if good + theirs == len(found) else f"**{text} red**"


# What Soft-RoCE itself does otherwise, between two of its own kind, too: (which cells, what is found, a note).
DEVIATIONS = (
    (lambda cell: cell.operation == ("rc", "send_inv") and cell.requester == "we", "does not tell of an invalidation",
     "The kernel's Soft-RoCE (6.1) does not tell an application that a key was invalidated; it does invalidate it."),
    (lambda cell: cell.operation in (("rc", "read_bad_rkey"), ("rc", "send_too_long")) and (cell.requester, cell.faults) == ("peer", "loss"),
     "no completion of a request",
     "The NAK was lost, so nobody answers any more: Soft-RoCE repeats the READ or SEND for ever, whatever its retry count."),
)


def deviation(cell, finding):
    """The note, if this finding is the peer's own."""
    return next((note for applies, text, note in DEVIATIONS if applies(cell) and text in finding), None)


def table(results):
    """Markdown: an operation a row; a column for each fault and role; `passed/run` of the cells over IP version and path MTU.
    Red is what passed neither, nor is the peer's own.
    `results`: Cell -> a finding, empty if there is none."""
    columns = [(faults, requester) for faults in FACTORS["faults"] for requester in FACTORS["requester"]]
    lines = ["| operation | " + " | ".join(f"{faults}, {'we request' if requester == 'we' else 'peer requests'}"
                                           for faults, requester in columns) + " |",
             "|---" * (len(columns) + 1) + "|"]
    for operation in dict.fromkeys(cell.operation for cell in results):
        row = []
        for faults, requester in columns:
            found = [(cell, finding) for cell, finding in results.items()
                     if (cell.operation, cell.faults, cell.requester) == (operation, faults, requester)]
            row.append(entry(found))
        lines.append(f"| {' '.join(operation)} | " + " | ".join(row) + " |")
    notes = dict.fromkeys(note for cell, finding in results.items() if (note := deviation(cell, finding)))
    return "\n".join([*lines, *(f"\n(rxe) {note}" for note in notes)]) + "\n"


def document(results, harmed):
    """The page that `tools/interop` writes. `results`: the name of a port -> its cells, as in table(); `harmed`: frames."""
    sections = "\n".join(f"## {PORTS[name].title}\n\n{len(found)} cells.\n\n{table(found)}" for name, found in results.items())
    return f"""# Interoperability with Linux Soft-RoCE

Made by `tools/interop --full`: our NIC, and the Soft-RoCE and connection manager of Debian 12's kernel in a guest. {sum(map(len, results.values()))} cells:
each operation over IPv4 and IPv6, in both roles, with path MTUs from 256 to 4096, on a clean cable and on cables that lose, double and swap
frames ({harmed} were), all of them on a port of kind AF_PACKET, and the core of them on others. An entry counts the cells that passed, of those
with this operation, fault and requester. Both sides looked at every byte, completion, immediate, GRH, and word of private data.

{sections}"""
