"""What is to happen in one seed's run, as plain data: nodes, sessions and what is said in them, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

AGENTS: Final = ("plain", "plain", "plain", "careful", "hasty", "brief")
"""`careful` has an `init`, `hasty` a longest duration of a turn, `brief` closes when idle."""

WORDS: Final = ("w", "w", "w", "l", "l", "s", "s", "S", "S", "q", "m", "m", "r", "x", "c")


@dataclass(frozen=True)
class Act:
    """Something that a client does, after a pause in seconds."""

    pause: float
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Talk:
    """One client's way with one session; two with the same key share it. `bad_inits` is how many of its inits raise."""

    start: float
    agent: str
    key: str | None
    said: str | None
    acts: tuple[Act, ...]
    watches: int
    bad_inits: int


@dataclass(frozen=True)
class Mishap:
    """Something that goes wrong for a while, with a node or with the store.

    It begins at a time, or at the commit of this number with the node that made it; and `steps` of the node later.
    """

    at: float
    kind: str
    node: int
    seconds: float
    steps: int = 0
    commit: int | None = None


@dataclass(frozen=True)
class Plan:
    """See the module. With one node and `shared` false it is the embedded store. Times are seconds."""

    seed: int
    shared: bool
    workers: int
    servers: int
    lease: float
    sleep_after: float
    latency: float
    loses_answers: float
    loses_hints: float
    offsets: tuple[float, ...]
    feeds: int
    talks: tuple[Talk, ...]
    mishaps: tuple[Mishap, ...]
    length: float = field(default=0.0)


def draw(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(f"plan {seed}")
    shared = random.random() < 0.85
    workers = random.choice((1, 2, 2, 3)) if shared else 1
    servers = random.choice((0, 0, 1)) if shared else 0
    talks = tuple(_talk(random) for _ in range(random.choice((1, 2, 2, 3, 4))))
    length = max(talk.start + sum(act.pause for act in talk.acts) for talk in talks) + random.uniform(0.5, 4)
    lease = random.choice((1.0, 2.0, 3.0))
    count = random.choice((0, 1, 2, 3, 4, 6, 8, 12))
    mishaps = [_mishap(random, workers + servers, length, lease, shared) for _ in range(count)]
    return Plan(
        seed=seed,
        shared=shared,
        workers=workers,
        servers=servers,
        lease=lease,
        sleep_after=random.choice((0.0, 1.0, 60.0)),
        latency=random.choice((0.0002, 0.002, 0.002, 0.02)),
        loses_answers=random.choice((0.0, 0.0, 0.02, 0.1)),
        loses_hints=random.choice((0.0, 0.0, 0.3, 1.0)),
        offsets=tuple(random.choice((0.0, 0.0, 5.0, -3600.0, 3600.0)) for _ in range(workers + servers)),
        feeds=random.choice((0, 0, 0, 1)),
        talks=talks,
        mishaps=tuple(sorted(mishaps, key=lambda mishap: mishap.at)),
        length=length,
    )


def _talk(random: Random) -> Talk:
    acts = tuple(_act(random) for _ in range(random.choice((0, 1, 2, 3, 5, 8))))
    return Talk(
        start=random.uniform(0, 2),
        agent=random.choice(AGENTS),
        key=random.choice((None, None, "one", "two")),
        said=_said(random) if random.random() < 0.7 else None,
        acts=acts,
        watches=random.choice((0, 1, 1, 2)),
        bad_inits=random.choice((0, 0, 0, 1)),
    )


_ACTS: Final = ("input",) * 8 + (
    "send",
    "send",
    "steer",
    "steer",
    "steer",
    "interrupt",
    "interrupt",
    "wait",
    "wait",
    "close",
    "cancel",
)


def _act(random: Random) -> Act:
    kind = random.choice(_ACTS)
    pause = random.choice((0.0, random.uniform(0, 0.1), random.uniform(0, 3)))
    return Act(pause, kind, _said(random) if kind in ("input", "send", "steer") else "")


def _said(random: Random) -> str:
    """Return what a handler is to do, in words; see `agents.play`."""
    words = []
    for _ in range(random.choice((0, 1, 1, 2, 3, 4))):
        word = random.choice(WORDS)
        if word == "m":
            # What is said to it arrives while it waits.
            word = f"m s:{random.uniform(0.1, 3):.2f}"
        elif word in ("s", "c"):
            word += f":{random.choice((0.0, 0.01, 0.3, random.uniform(0, 2))):.3f}"
        elif word == "S":
            word = f"s:{random.uniform(1, 8):.1f}"
        words.append(word)
    return " ".join(words) or "-"


_MISHAPS: Final = ("crash", "crash", "freeze", "freeze", "cut", "cut", "deaf", "clock", "drain", "down", "slow")
_ALONE: Final = ("crash", "crash", "freeze", "clock", "drain", "down", "slow")


def _mishap(random: Random, nodes: int, length: float, lease: float, shared: bool) -> Mishap:
    kind = random.choice(_MISHAPS if shared else _ALONE)
    seconds = random.choice((random.uniform(0.02, 0.5), random.uniform(0.3, 1.1) * lease, random.uniform(1, 4) * lease))
    commit = random.randrange(2, 70) if random.random() < 0.5 else None
    steps = random.choice((0, 1, 3, 10, 30))
    return Mishap(random.uniform(0, length), kind, random.randrange(nodes), seconds, steps, commit)
