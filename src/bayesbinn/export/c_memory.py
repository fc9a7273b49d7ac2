"""Place the values of a network in one small buffer.

A value is needed from the step that computes it to the last step that uses it; values that are never needed at the same
time can share memory. Steps are numbered in the order of `Networks.steps`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from bayesbinn.export.networks import Networks
from bayesbinn.modelfile.graph import OPERATIONS

# These read an element before they write it, so they may write over an input that nothing needs any more.
_IN_PLACE = {"affine", "softmax", *(op for op, operation in OPERATIONS.items() if operation.elementwise)}


@dataclass
class Block:
    """`size` floats that are needed from step `first` to step `last`."""

    size: int
    first: int
    last: int
    offset: int = field(default=-1)


@dataclass(frozen=True)
class Memory:
    values: dict[int, Block | None]
    """One block per computed value; None for the caller's input."""
    answer: Block
    scratch: Block
    floats: int
    """Size of the whole buffer."""


def plan_memory(networks: Networks) -> Memory:
    """Assign memory to every value. An ensemble repeats its own steps once per network, so shared values must stay."""
    steps, nodes, end = networks.steps, networks.graph.nodes, len(networks.steps)
    last = {len(nodes): end}
    for step, index in enumerate(steps):
        for value in nodes[index].inputs:
            stays = networks.own[index + 1] and not networks.own[value]
            last[value] = max(last.get(value, 0), end if stays else step)
    values: dict[int, Block | None] = {0: None}
    blocks: list[Block] = []
    for step, index in enumerate(steps):
        node, value = nodes[index], index + 1
        candidates = [values[v] for v in node.inputs]
        if node.op == "reshape":
            block = candidates[0]
            if block is not None:
                block.last = max(block.last, last[value])
        else:
            dying = [b for b in candidates if b is not None and b.last == step] if node.op in _IN_PLACE else []
            if dying:
                block = dying[0]
                block.last = last[value]
            else:
                block = Block(prod(networks.shapes[value]), step, last[value])
                blocks.append(block)
        values[value] = block
    shared = sum(not networks.own[index + 1] for index in steps)
    answer = Block(networks.outputs, end if networks.graph.networks == 1 else min(shared, end), end)
    scratch = Block(networks.outputs, end, end)
    extra = [answer] if networks.classifies or networks.graph.networks > 1 else []
    extra += [scratch] if networks.classifies and networks.graph.networks > 1 else []
    return Memory(values, answer, scratch, place_blocks([*blocks, *extra]))


def place_blocks(blocks: list[Block]) -> int:
    """Set the offsets, largest block first, each as low as possible; return the total size.

    >>> chain = [Block(5, 0, 1), Block(3, 1, 2), Block(4, 2, 3)]
    >>> place_blocks(chain), [block.offset for block in chain]
    (8, [0, 5, 0])
    """
    placed: list[Block] = []
    for block in sorted(blocks, key=lambda b: -b.size):
        offset = 0
        neighbours = [b for b in placed if b.first <= block.last and block.first <= b.last]
        for other in sorted(neighbours, key=lambda b: b.offset):
            if other.offset - offset >= block.size:
                break
            offset = max(offset, other.offset + other.size)
        block.offset = offset
        placed.append(block)
    return max((block.offset + block.size for block in blocks), default=0)
