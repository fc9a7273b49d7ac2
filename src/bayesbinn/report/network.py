"""The network itself: its layers with bits, bytes and multiply-adds, and how sure the posterior is of its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from bayesbinn.continual.record import BINS, SATURATED
from bayesbinn.packing.sizes import LayerSummary, Summary, summary
from bayesbinn.posterior import BernoulliPosterior
from bayesbinn.report.blocks import Block, Drawing, Missing, Section, Table, Text
from bayesbinn.report.drawing import HEIGHT, SERIES, canvas, drawn, logarithmic, short
from bayesbinn.runs.trained import Trained

MAX_HISTOGRAMS = 12
_COLUMNS = 3


@dataclass(frozen=True)
class LayerWeights:
    """The distribution of P(w = +1) over the weights of a layer."""

    name: str
    weights: int
    counts: Sequence[int]
    """Weights in each of 50 bins from 0 to 1."""
    saturated: float
    """The share of weights whose more likely sign has a probability of 0.99 or more."""


@dataclass(frozen=True)
class Network:
    """What a trained network is made of."""

    sizes: Summary
    weights: Sequence[LayerWeights]
    """Empty for full precision."""
    point_mass: bool
    """Whether the method keeps one network, without probabilities."""
    entropy: float | None
    """Bits per weight, averaged over all weights."""


def gather(trained: Trained) -> Network:
    """Sizes and weights of a run's network."""
    posterior = trained.posterior
    sizes = summary(trained.model, trained.card.example())
    if posterior is None:
        return Network(sizes, (), False, None)
    point_mass = any(bool(torch.isinf(value).any()) for value in posterior.natural.values())
    bits = posterior.mean_entropy() / float(torch.log(torch.tensor(2.0)))
    return Network(sizes, [] if point_mass else _by_layer(posterior), point_mass, bits)


def _by_layer(posterior: BernoulliPosterior) -> list[LayerWeights]:
    found = []
    for name, p in posterior.probability().items():
        certain = torch.maximum(p, 1 - p) >= SATURATED
        counts = torch.histc(p.flatten(), bins=BINS, min=0, max=1).long().tolist()
        found.append(LayerWeights(name, p.numel(), counts, float(certain.float().mean())))
    return found


def layers_section(sizes: Summary) -> Section:
    """A row per layer, and their sum."""
    head = [
        "layer",
        "type",
        "binary weights",
        "real",
        "bits per weight",
        "float32 bytes",
        "packed bytes",
        "multiply-adds",
    ]
    rows = [_row(layer) for layer in (*sizes.layers, sizes.total)]
    said = (
        f"{sizes.compression:.1f} times smaller than float32. Bytes are those of the tensors, without the file's "
        "header; BatchNorm becomes a scale and a shift per channel."
    )
    return Section("Layers", [Table("Size and cost of each layer, per example", head, rows, words=2), Text(said)])


def _row(layer: LayerSummary) -> list[str]:
    stored = layer.binary + layer.real
    bits = "" if not stored else "1" if not layer.real else f"{(layer.binary + 32 * layer.real) / stored:.2g}"
    numbers = (layer.float32_bytes, layer.packed_bytes, layer.macs or 0)
    return [layer.name, layer.kind, f"{layer.binary:,}", f"{layer.real:,}", bits, *(f"{each:,}" for each in numbers)]


def weights_section(network: Network) -> Section:
    """Histograms of P(w = +1)."""
    title = "Weights"
    if network.point_mass:
        return Section(title, [Missing("this method keeps one network of −1 and +1, without probabilities")])
    if not network.weights:
        return Section(title, [Missing("a full-precision network has no distribution over signs")])
    blocks: list[Block] = [_draw_histograms(network.weights[:MAX_HISTOGRAMS])]
    if len(network.weights) > MAX_HISTOGRAMS:
        blocks.append(Text(f"The first {MAX_HISTOGRAMS} of {len(network.weights)} layers are drawn."))
    rows = [[each.name, f"{each.weights:,}", f"{100 * each.saturated:.2f} %"] for each in network.weights]
    blocks.append(Table("Weights that are certain: P(w = ±1) of at least 0.99", ["layer", "weights", "certain"], rows))
    if network.entropy is not None:
        blocks.append(Text(f"The mean entropy of a weight is {network.entropy:.3g} bits; 1 bit is a fair coin."))
    return Section(title, blocks)


def _draw_histograms(layers: Sequence[LayerWeights]) -> Drawing:
    rows = -(-len(layers) // _COLUMNS)
    height = max(1.9, HEIGHT / 2 * rows)
    with canvas(rows, min(_COLUMNS, len(layers)), height, sharex=True, sharey=True) as (figure, axes):
        for index, axis in enumerate(axes.flat):
            if index >= len(layers):
                axis.set_visible(False)
                continue
            layer = layers[index]
            shares = [100 * count / layer.weights for count in layer.counts]
            edges = [i / BINS for i in range(BINS + 1)]
            axis.stairs(shares, edges, color=SERIES[0], fill=True)
            axis.set_title(short(layer.name, 18))
            logarithmic(axis)
            axis.set_ylim(1e-3, 100)
            axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            axis.set_yticks([1e-2, 1, 100])
            axis.tick_params(labelbottom=index + _COLUMNS >= len(layers))
        figure.supxlabel("P(w = +1)")
        figure.supylabel("weights, %")
        certain = ", ".join(f"{each.name} {100 * each.saturated:.1f} %" for each in layers)
        alt = f"Histograms of P(w = +1) for {len(layers)} layers. Certain weights (0.99 or more): {certain}."
        caption = "How sure the posterior is of each weight, by layer (logarithmic): weights at 0 and 1 are certain."
        return drawn(figure, "weights", alt, caption)


def headline(sizes: Summary) -> Mapping[str, str]:
    """What the top of a page says about the size."""
    total = sizes.total
    return {"binary weights": f"{total.binary:,}", "packed": size_text(total.packed_bytes)}


def size_text(count: int) -> str:
    """Bytes for people.

    >>> size_text(1_300_000), size_text(5310), size_text(12)
    ('1.3 MB', '5.31 KB', '12 B')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} B"
