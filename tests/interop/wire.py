#!/usr/bin/python3
"""A cable that harms: carries frames between two interfaces, and loses, doubles or swaps some of the RoCE v2 ones.

    wire.py INTERFACE INTERFACE
    wire.py --sums INTERFACE      from now on the kernel computes the checksums of what it sends there: a cable does not

A line on stdin sets what is done from now on, `MODE SEED`, MODE one of clean, loss, duplicate, reorder; the answer is
one line on stdout, `HARMED SEEN`, of the RoCE frames since the line before. In each direction every second to ninth
frame is harmed, as the seed says, so that a short exchange meets a fault and a long one still ends.
"""
import array
import fcntl
import random
import select
import socket
import struct
import sys
import time

ROCE_UDP_PORT = 4791
ETH_P_ALL = 3
PACKET_OUTGOING = 4
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
MODES = ("clean", "loss", "duplicate", "reorder")
HELD_SECONDS = 0.02  # a frame that waits for another to overtake it


def is_roce(frame):
    kind = frame[12:14]
    if kind == b"\x08\x00":
        ip_bytes = (frame[14] & 15) * 4
        return frame[23] == 17 and int.from_bytes(frame[14 + ip_bytes + 2:14 + ip_bytes + 4], "big") == ROCE_UDP_PORT
    return kind == b"\x86\xdd" and frame[20] == 17 and int.from_bytes(frame[56:58], "big") == ROCE_UDP_PORT


class Direction:
    def __init__(self, source, sink):
        self.source, self.sink = source, sink
        self.set("clean", 0)

    def set(self, mode, seed):
        self.release()
        self.mode, self.dice = mode, random.Random(seed)
        self.gap = self.dice.randrange(1, 9)
        self.seen = self.harmed = 0

    held, held_until = None, 0.0

    def release(self):
        if self.held is not None:
            self.send(self.held)
            self.held = None

    def send(self, frame):
        try:
            self.sink.send(frame)
        except OSError:
            pass  # the interface is down or full: a cable loses, too

    def carry(self):
        frame, address = self.source.recvfrom(65536)
        if address[2] == PACKET_OUTGOING:
            return
        if not is_roce(frame):
            self.send(frame)
            return
        self.seen += 1
        harm = False
        if self.mode != "clean":
            self.gap -= 1
            if self.gap <= 0:
                harm, self.gap = True, self.dice.randrange(2, 10)
        self.harmed += harm
        if harm and self.mode == "loss":
            return
        if harm and self.mode == "reorder" and self.held is None:
            self.held, self.held_until = frame, time.monotonic() + HELD_SECONDS
            return
        self.send(frame)
        if harm and self.mode == "duplicate":
            self.send(frame)
        self.release()


def compute_checksums(name):
    request = array.array("I", [ETHTOOL_STXCSUM, 0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCETHTOOL, struct.pack("16sP", name.encode(), request.buffer_info()[0]))


def main():
    names = sys.argv[1:]
    if len(names) == 2 and names[0] == "--sums":
        compute_checksums(names[1])
        return
    if len(names) != 2:
        sys.exit(__doc__.strip())
    ends = []
    for name in names:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        end.bind((name, 0))
        # As promiscuous as a cable: struct packet_mreq.
        index = socket.if_nametoindex(name)
        end.setsockopt(263, 1, index.to_bytes(4, sys.byteorder) + (1).to_bytes(2, sys.byteorder) + bytes(10))
        ends.append(end)
    ways = {ends[0]: Direction(ends[0], ends[1]), ends[1]: Direction(ends[1], ends[0])}
    print("ready", flush=True)
    while True:
        waits = any(way.held is not None for way in ways.values())
        for ready in select.select([*ends, sys.stdin], [], [], HELD_SECONDS if waits else None)[0]:
            if ready is not sys.stdin:
                ways[ready].carry()
                continue
            words = sys.stdin.readline().split()
            if not words:
                return
            print(sum(way.harmed for way in ways.values()), sum(way.seen for way in ways.values()), flush=True)
            for number, way in enumerate(ways.values()):
                way.set(words[0], int(words[1]) * 2 + number)
        for way in ways.values():
            if way.held is not None and time.monotonic() > way.held_until:
                way.release()


if __name__ == "__main__":
    main()
