#!/usr/bin/python3
"""A peer whose connection manager is out of its mind: sends MADs to QP1 of a NIC, each in a whole packet with a right ICRC.

    cm_hostile.py INTERFACE SOURCE_IP PEER_IP PEER_MAC PORT COUNT SEED

COUNT of each kind: REQs for the TCP port space's PORT with ids of their own, that are never followed up; REQs for ports of
any number; every other message with ids that nobody gave out; MADs cut, stretched, of wrong class, method or version, and
of nothing but dice. A line tells how many went out.
"""
import random
import socket
import struct
import sys
import time
import zlib

ETH_P_ALL = 3
REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR = range(0x10, 0x1B)
GSI_QKEY = 0x80010000
MAD_BYTES = 256
PAUSE_EVERY, PAUSE_SECONDS = 64, 0.004  # so that the wire itself loses few


class Sender:
    def __init__(self, interface, source_ip, peer_ip, peer_mac, dice):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.bind((interface, 0))
        self.own_mac = self.socket.getsockname()[4]
        self.peer_mac = bytes.fromhex(peer_mac.replace(":", ""))
        self.source, self.peer = socket.inet_aton(source_ip), socket.inet_aton(peer_ip)
        self.dice, self.sent = dice, 0

    def send(self, mad, source=None):
        pad = -len(mad) % 4
        bth = struct.pack("!BBHII", 0x64, pad << 4, 0xFFFF, 1, self.dice.randrange(1 << 24))
        deth = struct.pack("!II", GSI_QKEY, 1)
        payload = bth + deth + mad + bytes(pad)
        udp = struct.pack("!HHHH", 0xC000, 4791, 8 + len(payload) + 4, 0)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp) + len(payload) + 4, 7, 0x4000, 64, 17, 0, source or self.source, self.peer)
        # ICRC: TTL, TOS, both checksums and BTH.resv8a count as ones, and 64 more bits stand for the GRH's.
        masked = b"\xff" * 8 + ip[:1] + b"\xff" + ip[2:8] + b"\xff" + ip[9:10] + b"\xff\xff" + ip[12:] + udp[:6] + b"\xff\xff"
        masked += bth[:4] + b"\xff" + bth[5:] + payload[len(bth):]
        total = sum(struct.unpack("!10H", ip))
        total = (total & 0xFFFF) + (total >> 16)
        ip = ip[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + ip[12:]
        frame = self.peer_mac + self.own_mac + b"\x08\x00" + ip + udp + payload + struct.pack("<I", zlib.crc32(masked))
        try:
            self.socket.send(frame)
        except OSError:
            pass  # full: a wire loses, too
        self.sent += 1
        if self.sent % PAUSE_EVERY == 0:
            time.sleep(PAUSE_SECONDS)


def mad(attribute, body, transaction, mad_class=7, version=2, method=3):
    head = struct.pack("!BBBBHHQHHI", 1, mad_class, version, method, 0, 0, transaction, attribute, 0, 0)
    return (head + body).ljust(MAD_BYTES, b"\0")


def req(dice, source, peer, port, number):
    path = struct.pack("!HH16s16sIBBBB", 0xFFFF, 0xFFFF, b"\0" * 10 + b"\xff\xff" + source, b"\0" * 10 + b"\xff\xff" + peer, 0, 0, 64, 0, 14 << 3)
    ip_cm = struct.pack("!BBH16s16s", 0, 4 << 4, 40000, bytes(12) + source, bytes(12) + peer)
    return struct.pack("!IIQQIIIIIIHBB", number, 0, 0x0000000001060000 + port, dice.getrandbits(64), 0, 0,
                       dice.randrange(2, 1 << 24) << 8 | 4, 4, 20 << 3, dice.randrange(1 << 24) << 8 | 20 << 3 | 7, 0xFFFF,
                       3 << 4 | 7, 15 << 4) + path + bytes(44) + ip_cm + dice.randbytes(56)


def main():
    if len(sys.argv) != 8:
        sys.exit(__doc__.strip())
    interface, source_ip, peer_ip, peer_mac = sys.argv[1:5]
    port, count, seed = map(int, sys.argv[5:])
    dice = random.Random(seed)
    sender = Sender(interface, source_ip, peer_ip, peer_mac, dice)
    for number in range(count):
        transaction = dice.getrandbits(64)
        wanted = req(dice, sender.source, sender.peer, port, number + 1)
        sender.send(mad(REQ, wanted, transaction))
        sender.send(mad(REQ, req(dice, sender.source, sender.peer, dice.randrange(65536), dice.getrandbits(32)), transaction))
        # From an address that nobody answers for.
        stranger = sender.source[:3] + bytes([dice.randrange(1, 255)])
        sender.send(mad(REQ, req(dice, stranger, sender.peer, port, number + 1), transaction), stranger)
        sender.send(mad(dice.choice((MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR)), dice.randbytes(232), transaction))
        junk = bytearray(mad(dice.choice((REQ, REP, dice.randrange(65536))), wanted, transaction, dice.choice((7, 7, dice.randrange(256))),
                             dice.choice((2, dice.randrange(256))), dice.choice((3, dice.randrange(256)))))
        for _ in range(dice.randrange(8)):
            junk[dice.randrange(len(junk))] = dice.randrange(256)
        sender.send(bytes(junk[:dice.choice((len(junk), dice.randrange(len(junk))))]) + bytes(dice.choice((0, 0, 200))))
        sender.send(dice.randbytes(dice.randrange(300)))
    print(f"{sender.sent} MADs sent")


if __name__ == "__main__":
    main()
