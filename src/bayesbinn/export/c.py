"""C: one header and one source file of C99 without dependencies, for microcontrollers and anything else.

Weights stay bits; a layer adds or subtracts its inputs, so that no weight needs a multiplication. Nothing is allocated
and no state outlives a call: activations live in a buffer that the caller passes.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

from bayesbinn.errors import InvalidInput
from bayesbinn.export.c_layers import Layers
from bayesbinn.export.c_text import check_name, comment, needs_math, number, renamed, string, template
from bayesbinn.export.networks import Networks, as_float32, networks_of
from bayesbinn.files import make_folder, write_together
from bayesbinn.modelfile.container import ModelFile
from bayesbinn.modelfile.encoding import TableEncoding


def export_c(model: ModelFile, folder_or_stem: str | Path, *, name: str = "model") -> tuple[Path, Path]:
    """Write `model` as C; returns the paths of the header and of the source file.

    Args:
        model: from `bayesbinn.format.read`.
        folder_or_stem: an existing folder, which gets `<name>.h` and `<name>.c`; or the files' common path without the
            suffix, whose folder is created if needed.
        name: prefix of all functions and constants in the C code.
    """
    check_name(name)
    path = Path(folder_or_stem)
    if path.is_dir():
        path = path / name
    stem = path.with_suffix("") if path.suffix in (".h", ".c") else path
    if not re.fullmatch(r"[A-Za-z0-9_.+-]+", stem.name):
        raise InvalidInput(f"{stem.name!r}: the header is included by this name; use letters, digits and _ . + -")
    header, source = stem.with_name(stem.name + ".h"), stem.with_name(stem.name + ".c")
    written = _Writer(networks_of(model), name, header.name, model.encoding)
    make_folder(stem.parent)
    write_together([(header, written.header().encode()), (source, written.source().encode())])
    return header, source


class _Writer:
    """The text of both files."""

    def __init__(self, networks: Networks, name: str, header_name: str, encoding: TableEncoding | None) -> None:
        self.networks, self.name, self.header_name, self.encoding = networks, name, header_name, encoding
        self.layers = Layers(networks)

    def header(self) -> str:
        networks, graph = self.networks, self.networks.graph
        results = {
            "INPUTS": (f"{prod(graph.input_shape)}u", f"floats, {list(graph.input_shape)}"),
            "OUTPUTS": (f"{networks.outputs}u", "logits, one per class" if networks.classifies else "numbers"),
            "NETWORKS": (f"{graph.networks}u", "averaged for each answer"),
            "BUFFER_BYTES": (f"{self._buffer_bytes()}u", "for all activations; no other memory is used"),
        }
        codes = {"BUFFER_TOO_SMALL": -1, "BUFFER_MISALIGNED": -2, "NOT_A_NUMBER": -3}
        defines = [f"#define MODEL_{key} {value} /* {note} */" for key, (value, note) in results.items()]
        defines += [f"#define MODEL_{key} ({code})" for key, code in codes.items()]
        return renamed(
            "\n".join(
                [
                    *self._about(),
                    "#ifndef MODEL_H",
                    "#define MODEL_H",
                    "",
                    "#include <stddef.h>",
                    "",
                    *defines,
                    "",
                    "#ifdef __cplusplus",
                    'extern "C" {',
                    "#endif",
                    "",
                    *self._declarations(),
                    "#ifdef __cplusplus",
                    "}",
                    "#endif",
                    "",
                    "#endif",
                    "",
                ]
            ),
            self.name,
        )

    def _buffer_bytes(self) -> int:
        return max(1, self.layers.memory.floats) * 4

    def _about(self) -> list[str]:
        graph, call = self.networks.graph, "model_classify(input, buffer, sizeof buffer)"
        if not self.networks.classifies:
            call = "model_predict(input, output, buffer, sizeof buffer)"
        constants, memory = self.layers.constant_bytes, self._buffer_bytes()
        kind = f"{graph.networks} networks of " if graph.networks > 1 else ""
        return [
            f"/* A {graph.task} model exported by bayesbinn: {kind}{len(self.networks.steps)} layers.",
            f" * {constants} bytes of constants (weights are bits), {memory} bytes of memory for activations.",
            " * C99 without heap or static variables, so it is reentrant.",
            " *",
            " *     static float buffer[MODEL_BUFFER_BYTES / sizeof(float)];",
            " *     float input[MODEL_INPUTS], output[MODEL_OUTPUTS];",
            f" *     int result = {call};",
            " *",
            " * Every function returns a negative code if something is wrong. The buffer keeps nothing between",
            " * calls; two calls at the same time need two buffers. input and output may not overlap it.",
            *self._about_input(),
            " */",
        ]

    def _about_input(self) -> list[str]:
        """Which codes stand where in the input of a table's model."""
        if self.encoding is None:
            return []
        lines, start = (
            [" *", " * input is the encoded vector, not a raw row of the table. Its codes, see docs/format.md:"],
            0,
        )
        for column in self.encoding.columns:
            last = start + column.width - 1
            places = f"{start}" if last == start else f"{start} to {last}"
            lines.append(f" *     {places}: {comment(column.name)} ({column.kind})")
            start = last + 1
        return lines

    def _declarations(self) -> list[str]:
        networks, many = self.networks, self.networks.graph.networks > 1
        arguments = "(const float *input, float *output, void *buffer, size_t buffer_bytes);"
        if not networks.classifies:
            lines = [f"/* output: the {'mean of the ' if many else ''}network's output{'s' if many else ''}. */"]
            lines += [f"int model_predict{arguments}", ""]
            if many:
                lines += ["/* Also the networks' unbiased standard deviation. */"]
                several = arguments.replace("float *output", "float *mean, float *std")
                lines += [f"int model_predict_std{several}", ""]
            return lines
        what = "logarithms of the networks' mean probabilities" if many else "logits, calibrated"
        guard = [] if self._always_math() else ["#ifndef MODEL_NO_PROBABILITIES /* define it to avoid math.h */"]
        lines = [f"/* output: {what}. */", f"int model_predict{arguments}", "", *guard]
        lines += [f"/* output: {'mean ' if many else ''}probabilities. */", f"int model_probabilities{arguments}"]
        lines += [*(["#endif"] if guard else []), "", "/* The most likely class, counted from 0. */"]
        lines += ["int model_classify(const float *input, void *buffer, size_t buffer_bytes);", ""]
        if networks.graph.classes:
            lines += ["/* UTF-8; NULL if there is no such class. */", "const char *model_class_name(int index);", ""]
        return lines

    def _always_math(self) -> bool:
        return self.networks.graph.networks > 1 or any(map(needs_math, self.layers.parts))

    def source(self) -> str:
        networks, many, name = self.networks, self.networks.graph.networks > 1, self.name
        if networks.classifies:
            self.layers.parts |= {"softmax": None} if many else {}
        code = ["#include <stdint.h>", "#include <string.h>"]
        # With one network, only probabilities need exp; users without math.h can leave them out.
        optional = networks.classifies and not self._always_math()
        if optional:
            code += ["#ifndef MODEL_NO_PROBABILITIES", "#include <math.h>", "#endif"]
        elif self._always_math():
            code += ["#include <math.h>"]
        code += [
            "",
            *map(template, self.layers.parts),
            *self.layers.arrays.values(),
            *self.layers.shapes,
        ]
        code += [
            *self._constants(),
            *self._body("model_shared", False),
            *(self._body("model_own", True) if many else []),
        ]
        code += [template("check_buffer")]
        if networks.classifies:
            code += [template("logits"), template(f"predict_class_{'many' if many else 'one'}")]
            extra = [template("softmax")] if "softmax" not in self.layers.parts else []
            chances = [*extra, template(f"probabilities_{'many' if many else 'one'}")]
            code += ["#ifndef MODEL_NO_PROBABILITIES", *chances, "#endif\n"] if optional else chances
            code += [template("classify")]
        else:
            code += [template(f"predict_mean_{'many' if many else 'one'}")]
        names = self._class_names() if networks.classifies and networks.graph.classes else ""
        # The file name and the class names are not renamed.
        return f'#include "{self.header_name}"\n\n' + renamed("\n".join(code), name) + names

    def _constants(self) -> list[str]:
        networks, memory = self.networks, self.layers.memory
        result = self.layers.at(len(networks.graph.nodes)).replace("f +", "(const float *)buffer +")
        lines = [f"#define MODEL_RESULT ({result})"]
        if networks.classifies:
            lines += [f"#define MODEL_RAW_OUTPUTS {networks.raw_outputs}u"]
            lines += [f"static const float model_logit_scale = {number(as_float32(networks.graph.logit_scale))};"]
        if memory.answer.offset >= 0:
            lines += [f"#define MODEL_ANSWER {memory.answer.offset}u"]
        if memory.scratch.offset >= 0:
            lines += [f"#define MODEL_SCRATCH {memory.scratch.offset}u"]
        return [*lines, ""]

    def _body(self, function: str, own: bool) -> list[str]:
        """Run the layers that all networks share, or those of one network. f is the buffer."""
        parameters = "const float *input, float *f" + (", size_t network" if own else "")
        unused = ["(void)input;", "(void)f;", *(["(void)network;"] if own else [])]
        return [
            f"static void {function}({parameters})",
            "{",
            *(f"    {line}" for line in [*unused, *self.layers.lines[own]]),
            "}\n",
        ]

    def _class_names(self) -> str:
        names = ",\n".join(f"        {string(each)}" for each in self.networks.graph.classes)
        return (
            f"\nconst char *{self.name}_class_name(int index)\n{{\n"
            f"    static const char *const names[{len(self.networks.graph.classes)}] = {{\n{names}\n    }};\n"
            f"    return index < 0 || index >= {len(self.networks.graph.classes)} ? NULL : names[index];\n}}\n"
        )
