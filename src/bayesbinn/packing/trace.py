"""A torch model as a layer graph: traced with torch.fx, translated call by call, BatchNorm folded into its layer.

The structure is found once. The tensors are computed afterwards, once for every network of an
ensemble, from the parameters and buffers of that network (`Captured.tensors`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from bayesbinn.binary import canonical_name
from bayesbinn.errors import InvalidInput
from bayesbinn.modelfile.fusion import affine_hosts, composed
from bayesbinn.modelfile.graph import OPERATIONS, Node, Shape
from bayesbinn.packing.operators import FUNCTIONS, METHODS, MODULES, Call, Constant, Lookup, Made, Step, Value
from bayesbinn.prediction.functional import unwrapped


@dataclass(frozen=True)
class Layer:
    """A node of the graph with the sources of its tensors."""

    name: str
    made: Made
    axes: int
    """How many axes its result has for one example."""


@dataclass(frozen=True)
class Captured:
    """The structure of a model."""

    input_shape: Shape
    layers: tuple[Layer, ...]
    root: nn.Module

    def tensors(self, given: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of every layer by role, for a model with these parameters and buffers (canonical names)."""
        lookup = _Lookup(self.root, given)
        return [_tensors(layer.made, lookup) for layer in self.layers]

    def nodes(self) -> list[Node]:
        """Without the names of tensors."""
        return [Node(each.made.op, each.made.inputs, each.name, each.made.settings) for each in self.layers]


def capture(model: nn.Module, example: Tensor | None) -> tuple[Captured, Tensor]:
    """The structure of a model, and the batch used to find its shapes. Call it inside `evaluating(model)`.

    Without an example, a model that starts with a linear layer runs on random rows.
    """
    root = _Root(unwrapped(model))
    traced = _traced(root)
    graph = traced.graph
    _check_modules(root, graph)
    if example is None:
        example = _made_up_example(root, graph)
    if example.ndim < 2 or len(example) == 0:
        raise InvalidInput(f"example_input has shape {tuple(example.shape)}; pass a batch of one or more inputs")
    # One more example than the caller has: this exposes a model that relies on the size of its batch.
    shapes = _Shapes(traced)
    try:
        shapes.run(torch.cat([example, example[:1]]))
    except Exception as error:
        raise InvalidInput(
            f"{_kind(root)} cannot run on a batch of {len(example) + 1} examples of shape {tuple(example.shape[1:])} "
            f"({_first_line(error)}); pass another example_input, a batch in the form the model takes"
        ) from error
    layers = _fused(_translated(root, graph, shapes))
    return Captured(tuple(example.shape[1:]), layers, root), example


class _Root(nn.Module):
    """Calls the model with one input: other arguments keep their defaults, and a single layer can be a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


def _kind(root: nn.Module) -> str:
    return type(root.model).__name__


def _shown(target: str) -> str:
    """A path in the model as the user knows it."""
    return canonical_name(target.removeprefix("model").removeprefix(".") + ".").removesuffix(".")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


# ---- tracing ---------------------------------------------------------------------------------------


class _Tracer(fx.Tracer):
    record_stack_traces = True  # for messages
    proxy_buffer_attributes = True  # otherwise a forward that counts its calls in a buffer would count this one


def _traced(root: _Root) -> fx.GraphModule:
    try:
        with _attributes_kept(root):
            traced = fx.GraphModule(root, _Tracer().trace(root))
    except Exception as error:
        raise InvalidInput(
            f"{_kind(root)} cannot be traced ({_first_line(error)}): its forward must be a fixed sequence of "
            "operations that does not depend on the values or sizes of its input"
        ) from error
    traced.graph.eliminate_dead_code()
    return traced


@contextmanager
def _attributes_kept(root: nn.Module) -> Iterator[None]:
    """A forward that assigns ``self.features = x`` now assigns a tracer's proxy; the model must not keep it."""
    kinds = ("_parameters", "_buffers", "_modules")
    saved = [(each.__dict__, dict(each.__dict__)) for each in root.modules()]
    saved += [(each.__dict__[kind], dict(each.__dict__[kind])) for each in root.modules() for kind in kinds]
    try:
        yield
    finally:
        for attributes, before in saved:
            attributes.clear()
            attributes.update(before)


def _check_modules(root: _Root, graph: fx.Graph) -> None:
    """Reject unknown modules before anything runs: we do not know their inputs (tokens, for example) either."""
    computed: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or any(each in computed for each in node.all_input_nodes):
            computed.add(node)
            if node.op == "call_module" and _translation_of(root, node) is None:
                _refuse(root, node, "")


def _made_up_example(root: _Root, graph: fx.Graph) -> Tensor:
    lookup = _Lookup(root, {})
    for node in graph.nodes:
        translation = _translation_of(root, node)
        if translation is FUNCTIONS[nn.functional.conv2d] or translation is MODULES[nn.Conv2d]:
            break
        if translation is FUNCTIONS[nn.functional.linear]:
            weight = lookup(node.args[1] if len(node.args) > 1 else node.kwargs["weight"])
        elif translation is MODULES[nn.Linear]:
            weight = lookup(f"{node.target}.weight")
        else:
            continue
        numbers = torch.Generator().manual_seed(0)
        return torch.randn(2, weight.shape[1], generator=numbers).to(weight.device, weight.dtype)
    raise InvalidInput(f"{_kind(root)} does not start with a linear layer; pass a batch as example_input")


class _Shapes(fx.Interpreter):
    """Runs the graph and records the shape of every tensor and the value of everything else."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shape: dict[fx.Node, tuple[int, ...]] = {}
        self.plain: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shape[n] = tuple(result.shape)
        else:
            self.plain[n] = result
        return result


# ---- parameters --------------------------------------------------------------------------------------


class _Lookup:
    """Parameters and buffers by path, and what the model computes only from them (such as the sign of a weight)."""

    def __init__(self, root: nn.Module, given: Mapping[str, Tensor]) -> None:
        self._root = root
        self._own = {
            **dict(root.named_parameters(remove_duplicate=False)),
            **dict(root.named_buffers(remove_duplicate=False)),
        }
        # One parameter may have several paths, of which only one is named.
        places = {_shown(place): tensor for place, tensor in self._own.items()}
        self._replaced = {id(places[name]): value for name, value in given.items()}
        self._computed: dict[fx.Node, Tensor] = {}

    def __call__(self, source: Any) -> Tensor:
        if isinstance(source, fx.Node):
            if source not in self._computed:
                self._computed[source] = self._compute(source)
            return self._computed[source]
        tensor = self._own.get(source)
        if tensor is None:
            tensor = self._attribute(source)
        return self._replaced.get(id(tensor), tensor).detach()

    def _attribute(self, place: str) -> Any:
        found: Any = self._root
        for part in place.split("."):
            found = getattr(found, part)
        return found

    def _compute(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self(node.target)
        if node.op == "placeholder":
            raise InvalidInput("a weight that depends on the size of the batch cannot be packed")
        args, named = fx.node.map_arg((node.args, dict(node.kwargs)), self)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **named)
        call: Any = self._attribute(str(node.target)) if node.op == "call_module" else node.target
        return call(*args, **named)


def _tensors(made: Made, lookup: Lookup) -> dict[str, Tensor]:
    found = {} if made.weight is None else {"weight": lookup(made.weight.source)}
    affine: tuple[Any, Any] = (None, None)
    for step in made.steps:
        affine = composed(affine, step(lookup))  # in float64
    return {**found, **{role: each for role, each in zip(("scale", "shift"), affine, strict=True) if each is not None}}


# ---- translation -------------------------------------------------------------------------------------


def _translation_of(root: nn.Module, node: fx.Node) -> Callable[..., Made | Value] | None:
    if node.op == "call_module":
        return MODULES.get(type(root.get_submodule(str(node.target))))
    if node.op == "call_method":
        return METHODS.get(str(node.target))
    return FUNCTIONS.get(node.target) if node.op == "call_function" else None


def _translated(root: _Root, graph: fx.Graph, shapes: _Shapes) -> list[Layer]:
    layers: list[Layer] = []
    values: dict[fx.Node, Value] = {}
    names: set[str] = set()

    def argument(candidate: fx.Node) -> Any:
        if candidate in values:
            return values[candidate]
        return Constant(candidate, shapes.shape[candidate]) if candidate in shapes.shape else shapes.plain[candidate]

    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = Value(0, shapes.shape[node])
        elif node.op == "output":
            _check_output(root, node, values, layers)
        elif any(each in values for each in node.all_input_nodes) and (
            node in shapes.shape or not _is_number(shapes.plain[node])
        ):
            made = _translate(root, node, shapes, argument)
            if isinstance(made, Value):
                values[node] = replace(made, shape=shapes.shape[node])
                continue
            name = _shown(str(node.target)) if node.op == "call_module" else node.name
            layers.append(Layer(_unique(name, names), made, axes=max(len(shapes.shape[node]) - 1, 1)))
            values[node] = Value(len(layers), shapes.shape[node])
    return layers


def _is_number(plain: Any) -> bool:
    """Whether it is a plain value, such as a size, rather than a tensor."""
    return isinstance(plain, (int, float, bool, str, torch.Size, torch.dtype, torch.device, type(None)))


def _translate(root: _Root, node: fx.Node, shapes: _Shapes, argument: Callable[[fx.Node], Any]) -> Made | Value:
    refuse = partial(_refuse, root, node)
    translation = _translation_of(root, node)
    if translation is None or node not in shapes.shape:
        refuse("")
    module = root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def own(name: str) -> Constant | None:
        tensor = getattr(module, name)
        return None if tensor is None else Constant(f"{node.target}.{name}", tuple(tensor.shape))

    call = Call(shapes.shape[node], refuse, own)
    arguments: Any = fx.node.map_arg((node.args, dict(node.kwargs)), argument)
    args, named = arguments
    if module is not None:
        args, named = (module, *args, *named.values()), {}
    try:
        inspect.signature(translation).bind(call, *args, **named)
    except TypeError as error:
        refuse(f"with these arguments ({error})")
    return translation(call, *args, **named)


def _refuse(root: _Root, node: fx.Node, why: str) -> NoReturn:
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        what, where = type(module).__name__, f"module {_shown(str(node.target))!r}"
    else:
        target = node.target
        what = f"Tensor.{target}" if isinstance(target, str) else getattr(target, "__name__", str(target))
        where = _line_of_code(node)
    raise InvalidInput(f"{_kind(root)} cannot be packed: {what} in {where} is not supported{why and ' ' + why}")


def _line_of_code(node: fx.Node) -> str:
    """The line of the model that made the call: the innermost one outside torch and this package."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s*(.*)', node.stack_trace or "")
    ours = {str(Path(torch.__file__).parent), str(Path(__file__).resolve())}
    for file, line, code in reversed(frames):
        if not any(file.startswith(place) for place in ours):
            return f"{file}, line {line}: `{code.strip()}`"
    stack = node.meta.get("nn_module_stack") or {"": None}
    return f"the forward of {_shown(str(next(reversed(stack)))) or 'the model'!r}"


def _unique(name: str, used: set[str]) -> str:
    """A module that is called twice becomes two nodes."""
    name = name or "model"
    found, count = name, 1
    while found in used:
        count += 1
        found = f"{name}:{count}"
    used.add(found)
    return found


def _check_output(root: _Root, node: fx.Node, values: Mapping[fx.Node, Value], layers: list[Layer]) -> None:
    output = node.args[0]
    if not isinstance(output, fx.Node):
        raise InvalidInput(
            f"{_kind(root)} returns a {type(output).__name__}; pack needs a model that returns one tensor"
        )
    if output not in values or values[output].index == 0:
        raise InvalidInput(f"{_kind(root)} does not return the output of a layer")
    # Nothing after this value is needed: fx has removed dead code, and an alias of the value is not a layer.
    del layers[values[output].index :]


# ---- folding -----------------------------------------------------------------------------------------


def _fused(layers: list[Layer]) -> tuple[Layer, ...]:
    """Merge every scale and shift into the layer before it, if that can store it and nothing else uses its value."""
    hosts = affine_hosts([layer.made for layer in layers], [layer.axes for layer in layers])
    kept: list[Layer] = []
    number = [0]  # the new number of each old value
    for index, layer in enumerate(layers):
        made = replace(layer.made, inputs=tuple(number[value] for value in layer.made.inputs))
        host = hosts.get(index)
        if host is not None and "scale" in OPERATIONS[layers[host].made.op].tensors:
            before = number[host + 1] - 1
            steps: tuple[Step, ...] = (*kept[before].made.steps, *made.steps)
            kept[before] = replace(kept[before], made=replace(kept[before].made, steps=steps))
            number.append(before + 1)
        else:
            kept.append(replace(layer, made=made))
            number.append(len(kept))
    return tuple(kept)
