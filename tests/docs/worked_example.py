"""The worked example of docs/model.md, from the program's own numbers.

`python -m tools.regenerate example` writes the block between the markers. Every row holds an expression of plain
numbers and what the program says; the tests evaluate the one and compare it with the other.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from simulator.api import scenario_of
from simulator.cost.derived import Pricing
from simulator.cost.dtypes import optimizer_bytes_per_parameter
from simulator.cost.memory.loss import head_input_bytes
from simulator.cost.memory.peak import layer_gradient_bytes
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import Priced, price
from simulator.cost.timing.collectives import gather_seconds, shard_group
from simulator.cost.timing.layers import PassSeconds, attention_backward_factor, head_seconds, sum_parts, table_seconds
from simulator.cost.timing.step import pieces_of
from simulator.question.frameworks.profile import DTYPE_BYTES
from simulator.question.scenario.block import LayoutBlock, block_of
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import GIB, MIB
from simulator.search.build import estimate_layout
from tests.memory.counted import layer_tensors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "model.md"
START, END = "<!-- worked-example:start -->\n", "<!-- worked-example:end -->\n"
COMMAND = (
    "simulate estimate --model llama3.1-8b --hardware z2000 --nodes 4 --tp 1 --pp 2 --micro-batch-size 1 "
    "\\\n    --global-batch-size 1024 --seq-length 8192 --precision bf16"
)
LARGEST_COUNT = 1e13
UNITS = {"": 1.0, "MiB": float(MIB), "ms": 1e-3, "s": 1.0, "TFLOP/s": 1e12, "%": 0.01}


@dataclass(frozen=True)
class Row:
    """A term: its formula in numbers, and the program's figure in base units."""

    term: str
    expression: str
    value: float
    unit: str

    @property
    def shown(self) -> str:
        """The figure as the page prints it."""
        return f"{self.value / UNITS[self.unit]:,.{self.digits}f}"

    @property
    def digits(self) -> int:
        """Decimals printed: none for counts, else enough for five significant digits."""
        size = abs(self.value / UNITS[self.unit])
        if not (self.unit and size):
            return 0
        return 1 if size >= 1000 else 2 if size >= 100 else 3 if size >= 1 else 5

    @property
    def line(self) -> str:
        """The row of a Markdown table."""
        return f"| {self.term} | `{self.expression}` | {self.shown} {self.unit} |".replace("  |", " |")


def number(value: float) -> str:
    """A number as an expression holds it: counts in full, anything else to seven significant digits."""
    whole = float(value).is_integer() or 1e6 <= abs(value) < LARGEST_COUNT
    return f"{value:.0f}" if whole and abs(value) < LARGEST_COUNT else f"{value:.7g}".replace("e+", "e")


def times(*factors: float) -> str:
    return " × ".join(number(factor) for factor in factors)


class Example:
    """The layout of the page, priced, and the numbers its formulas take."""

    def __init__(self) -> None:
        self.scenario: Scenario = scenario_of(model="llama3.1-8b", nodes=4)
        layers = self.scenario.model.num_hidden_layers
        self.layout = Layout(
            pipeline_parallel=2, data_parallel=self.scenario.devices // 2, stage_layers=default_cut(layers, 2)
        )
        self.block: LayoutBlock = block_of([self.layout])
        self.priced: Priced = price(Pricing(self.scenario, self.block))
        self.estimate: Estimate = estimate_layout(self.scenario, self.layout)
        self.model = self.scenario.model
        self.tokens = self.layout.micro_batch_size * self.scenario.seq_length
        self.micro_batches = self.scenario.global_batch_size // self.layout.data_parallel
        self.stage = self.estimate.memory.binding_stage
        self.layers = self.layout.stage_layers[self.stage]

    @property
    def is_last(self) -> bool:
        return self.stage == self.layout.pipeline_parallel - 1

    @cached_property
    def layer_parameters(self) -> tuple[str, float]:
        """Matrix parameters of one layer: expression and value."""
        m = self.model
        text = f"{times(m.hidden_size, 2 * m.query_width + 2 * m.kv_width)} + {times(3, m.hidden_size)}"
        text += f" × {m.intermediate_size}"
        return text, m.hidden_size * (2 * m.query_width + 2 * m.kv_width + 3 * m.intermediate_size)

    # Memory of the binding rank.

    def state(self) -> Iterator[Row]:
        model, profile, parts = self.model, self.scenario.framework, self.estimate.memory.parts_bytes
        text, matrices = self.layer_parameters
        yield Row("matrix parameters of a layer", text, matrices, "")
        tail = f"{times(model.vocab_size, model.hidden_size)} + {model.hidden_size}"
        ends = tail if self.is_last else times(model.vocab_size, model.hidden_size)
        whole = f"{self.layers} × ({number(matrices)} + {times(2, model.hidden_size)}) + {ends}"
        stored = DTYPE_BYTES[profile.parameter_dtype]
        held = parts["parameters"] / stored
        yield Row("parameters of the rank: layers with two norms, table or output layer and norm", whole, held, "")
        yield Row("`parameters`", times(stored, held), parts["parameters"], "MiB")
        yield Row("`gradients`", times(DTYPE_BYTES[profile.gradient_dtype], held), parts["gradients"], "MiB")
        per_parameter = optimizer_bytes_per_parameter(self.scenario)
        sharded = f"{times(per_parameter, held)} / {self.layout.data_parallel}"
        yield Row("`optimizer`, over the replicas (ZeRO 1)", sharded, parts["optimizer"], "MiB")

    def activations(self) -> Iterator[Row]:
        model, tokens = self.model, self.tokens
        h, q, k, f = model.hidden_size, model.query_width, model.kv_width, model.intermediate_size
        expressions = {
            "attention_norm_input": times(2, tokens, h),
            "attention_norm_statistics": times(4, tokens),
            "attention_norm_output": times(2, tokens, h),
            "rotated_query": times(2, tokens, q),
            "rotated_key": times(2, tokens, k),
            "value": times(2, tokens, k),
            "attention_output": times(2, tokens, q),
            "attention_statistics": times(4, tokens, model.num_attention_heads),
            "ffn_norm_input": times(2, tokens, h),
            "ffn_norm_statistics": times(4, tokens),
            "ffn_norm_output": times(2, tokens, h),
            "ffn_gate_up": times(4, tokens, f),
            "ffn_product": times(2, tokens, f),
        }
        tensors = layer_tensors(Pricing(self.scenario, self.block), self.model.layer_kinds[0])
        layer = 0.0
        for name, size in tensors.items():
            if size[0]:
                layer += float(size[0])
                yield Row(f"`{name}`", expressions[name], float(size[0]), "MiB")
        yield Row("one layer", " + ".join(number(float(x[0])) for x in tensors.values() if x[0]), layer, "MiB")
        flight = min(self.layout.pipeline_parallel - self.stage, self.micro_batches)
        at_peak = self.estimate.memory.parts_bytes["activations"]
        yield Row("`activations`: in flight × layers × one layer", times(flight, self.layers, layer), at_peak, "MiB")

    def moment(self) -> Iterator[Row]:
        """The rest of the binding moment, which is the loss or a layer's backward pass."""
        memory, values, profile = self.estimate.memory, self.scenario.coefficients.memory, self.scenario.framework
        tokens, hidden = self.tokens, self.model.hidden_size
        per_logit = profile.loss_bytes_per_logit
        at_loss = memory.moment == "loss"
        logits = times(per_logit, tokens, self.model.vocab_size) if at_loss and self.is_last else "0"
        yield Row("`logits`", logits, memory.parts_bytes["logits"], "MiB")
        boundary = times(2, tokens, hidden)
        steady = f"{number(values.workspace_bytes)} + {number(values.pipeline_buffers)} × {boundary}"
        if memory.moment == "backward":
            gradients = float(layer_gradient_bytes(Pricing(self.scenario, self.block))[0])
            products = f"{times(4, tokens, self.model.intermediate_size)} + {times(2, tokens, hidden)}"
            yield Row("gradients of one layer", products, gradients, "MiB")
            text = f"{steady} + {number(gradients)}"
        elif at_loss and self.is_last:
            kept = float(head_input_bytes(Pricing(self.scenario, self.block))[0])
            text = f"{steady} + {number(kept)}"
            yield Row("kept by the final norm", f"{times(4, tokens, hidden)} + {times(4, tokens)}", kept, "MiB")
        else:
            text = steady
        yield Row("`temporary`", text, memory.parts_bytes["temporary"], "MiB")

    def outside(self) -> Iterator[Row]:
        memory, values = self.estimate.memory, self.scenario.coefficients.memory
        pieces, parts = memory.outside_parts_bytes, memory.parts_bytes
        allocated = [parts[name] for name in parts if name != "outside_allocator" and parts[name]]
        yield Row("**allocated**", " + ".join(map(number, allocated)), memory.allocated_bytes, "MiB")
        yield Row("`context`", number(values.context_bytes), pieces["context"], "MiB")
        groups = round(pieces["communicators"] / values.communicator_bytes)
        yield Row("`communicators`", f"{groups} × {number(values.communicator_bytes)}", pieces["communicators"], "MiB")
        share = values.fragmentation_expandable
        text = f"{number(share)} × {number(memory.allocated_bytes)}"
        yield Row("`fragmentation`", text, pieces["fragmentation"], "MiB")
        terms = [memory.allocated_bytes, *(pieces[name] for name in pieces if pieces[name])]
        yield Row("**device**", " + ".join(map(number, terms)), memory.device_bytes, "MiB")

    # Time.

    @cached_property
    def layer_seconds(self) -> dict[str, float]:
        """Both passes of one layer by part."""
        seconds = pieces_of(self.priced.pricing, 0)[0]
        return {name: float(seconds.forward[name][0] + seconds.backward[name][0]) for name in seconds.forward}

    @cached_property
    def rates(self) -> tuple[str, str, str]:
        """Expressions of what matrix products, attention and elementwise kernels reach."""
        hardware, values = self.scenario.hardware, self.scenario.coefficients.time
        peak, bandwidth = hardware.peak(self.scenario.precision), hardware.memory_bandwidth_bytes_per_second
        efficiencies = (values.gemm_efficiency, values.attention_efficiency, values.memory_efficiency)
        earlier = hardware.earlier_kernels
        within = peak if earlier is None else peak * earlier.value
        gemm, attention, memory = (
            f"({times(rate, share)})" for rate, share in zip((peak, within, bandwidth), efficiencies, strict=True)
        )
        return gemm, attention, memory

    def layer_time(self) -> Iterator[Row]:
        model, tokens, both = self.model, self.tokens, self.layer_seconds
        gemm_rate, attention_rate, memory_rate = self.rates
        q, k = model.query_width, model.kv_width
        gemm = f"3 × {times(2, tokens, self.layer_parameters[1])} / {gemm_rate}"
        yield Row("`gemm` at the rate of large products", gemm, evaluate(gemm), "ms")
        yield Row("`gemm`, by the shapes", f"{gemm} × {number(both['gemm'] / evaluate(gemm))}", both["gemm"], "ms")
        scores = times(2, tokens, self.scenario.seq_length, (q + model.value_width) / 2)
        cut = f"(1 + {number(self.scenario.coefficients.time.attention_tile_tokens)} / {self.scenario.seq_length})"
        yield Row(
            "`attention`",
            f"{1.0 + attention_backward_factor(self.scenario):g} × {scores} / {attention_rate} × {cut}",
            both["attention"],
            "ms",
        )
        moved = f"{times(20, model.hidden_size)} + 4 × ({q} + {k}) + {times(6, model.intermediate_size)}"
        around = f"14 × {model.value_width}"  # of a flash kernel's backward pass
        yield Row(
            "`memory_bound`", f"{tokens} × (3 × ({moved}) + {around}) / {memory_rate}", both["memory_bound"], "ms"
        )
        overhead = number(self.scenario.coefficients.time.layer_overhead_seconds)
        yield Row("`overhead`", overhead, both["overhead"], "ms")
        total = " + ".join(number(x) for x in both.values() if x)
        yield Row("one layer, both passes", total, sum(both.values()), "ms")

    def step(self) -> Iterator[Row]:
        values, speed, m = self.scenario.coefficients.time, self.estimate.throughput, self.micro_batches
        head, table = (_both(of(self.priced.pricing)) for of in (head_seconds, table_seconds))
        layer, tokens, words = sum(self.layer_seconds.values()), self.tokens, self.model.vocab_size
        gemm_rate, _, memory_rate = self.rates
        products = f"3 × {times(2, tokens, self.model.hidden_size, words)} / {gemm_rate}"
        passes = f"{times(self.scenario.framework.loss_traffic_bytes, tokens, words)} / {memory_rate}"
        shaped = head - evaluate(passes)
        products = f"{products} × {number(shaped / evaluate(products))}"
        yield Row("output layer and loss, both passes", f"{products} + {passes}", head, "ms")
        element = DTYPE_BYTES[self.scenario.framework.parameter_dtype]
        added = element + 2 * DTYPE_BYTES[self.scenario.framework.gradient_dtype]
        gradient = times(element + added, words, self.model.hidden_size)
        looked_up = f"{times(2, 2 * element, tokens, self.model.hidden_size)} + {gradient}"
        yield Row("input table, both passes", f"({looked_up}) / {memory_rate}", table, "ms")
        work = [stage.forward_seconds + stage.backward_seconds for stage in speed.stages]
        first, last = self.layout.stage_layers
        yield Row("rank 0", f"{first} × {number(layer)} + {number(table)}", work[0], "ms")
        yield Row("rank 1", f"{last} × {number(layer)} + {number(head)}", work[1], "ms")
        pace = m * float(self.priced.step.pipeline.pace_seconds[0])
        yield Row("pace: micro batches × slowest rank", f"{m} × {number(max(work))}", pace, "s")
        yield Row("`bubble`", number(min(work)), speed.parts_seconds["bubble"], "s")
        yield from self.traffic()
        outside = float(self.priced.step.overhead[0])
        overhead = f"{times(m, values.micro_batch_overhead_seconds)} + {number(values.step_overhead_seconds)}"
        overhead += f" + {number(values.node_doubling_wait)} × 2 × ({number(pace)} + {number(min(work))})"
        yield Row("`overhead` outside the layers", overhead, outside, "s")
        names = ("bubble", "pipeline_sends", "data_parallel", "optimizer")
        terms = [pace, *(speed.parts_seconds[name] for name in names), outside]
        yield Row("**step**", " + ".join(map(number, terms)), speed.step_seconds, "s")

    def traffic(self) -> Iterator[Row]:
        """Pipeline sends, data-parallel traffic and the optimizer; both groups reach into the network."""
        values, parts = self.scenario.coefficients.time, self.estimate.throughput.parts_seconds
        profile = self.scenario.framework
        inside, network = self.scenario.hardware.links
        replicas, share = self.layout.data_parallel, values.link_efficiency
        boundary = times(2, self.tokens, self.model.hidden_size)
        one = f"{boundary} / ({times(network.pair_bandwidth_bytes_per_second, share)})"
        one += f" + {number(network.latency_seconds)}"
        passed = f"({self.micro_batches} + {self.layout.pipeline_parallel} - 1)"
        yield Row("`pipeline_sends`", f"{passed} × 2 × ({one})", parts["pipeline_sends"], "s")
        node = inside.devices or 1
        nodes, size = replicas // node, number(GIB)
        in_node = f"({times(inside.bandwidth_bytes_per_second, share)})"
        between = f"({times(node, network.bandwidth_bytes_per_second, share)})"
        levels = (
            f"{node - 1} / {node} × {size} / {in_node}",
            f"{nodes - 1} / {nodes} × {size} / {between}",
        )
        latency = f"{node - 1} × {number(inside.latency_seconds)} + {nodes - 1} × {number(network.latency_seconds)}"
        gather = f"{max(levels, key=evaluate)} + {latency}"
        whole = np.full(1, float(GIB))
        seconds = float(gather_seconds(self.scenario, shard_group(self.block), whole)[0])
        yield Row("gather of 1 GiB over the replicas, at the slower level", gather, seconds, "ms")
        gradient = DTYPE_BYTES[profile.gradient_dtype]
        table = times(self.model.vocab_size, self.model.hidden_size)
        held = self.estimate.memory.stages[0].parts_bytes["parameters"] / DTYPE_BYTES[profile.parameter_dtype]
        shown = f"({table} + {number(values.data_exposed)} × ({number(held)} - {table}))"
        text = f"{shown} × ({gradient} + 2) × {number(seconds)} / {size}"
        yield Row("`data_parallel`, rank 0, whose table is at the end", text, parts["data_parallel"], "s")
        written = DTYPE_BYTES[profile.parameter_dtype]
        touched = number(2 * optimizer_bytes_per_parameter(self.scenario) + gradient + written)
        passed = times(profile.gradient_passes, gradient)
        text = f"({touched} / {replicas} + {passed}) × {number(self.largest_rank)} / {self.rates[2]}"
        yield Row("`optimizer`, larger rank", text, parts["optimizer"], "s")

    @property
    def largest_rank(self) -> float:
        """Parameters of the rank that holds most."""
        stored = DTYPE_BYTES[self.scenario.framework.parameter_dtype]
        return max(stage.parts_bytes["parameters"] for stage in self.estimate.memory.stages) / stored

    def speed(self) -> Iterator[Row]:
        scenario, speed, model = self.scenario, self.estimate.throughput, self.model
        attention = times(4, scenario.seq_length, (model.query_width + model.value_width) / 2)
        layers = f"{model.num_hidden_layers} × ({times(2, self.layer_parameters[1])} + {attention})"
        flops = f"3 × ({layers} + {times(2, model.hidden_size, model.vocab_size)})"
        yield Row("model FLOPs per token", flops, speed.model_flops_per_token, "")
        trained = times(scenario.seq_length, scenario.global_batch_size)
        tokens = f"{trained} / {number(speed.step_seconds)} / {scenario.devices}"
        yield Row("tokens/s/device", tokens, speed.tokens_per_second_per_device, "")
        rate = times(speed.model_flops_per_token, speed.tokens_per_second_per_device)
        yield Row("TFLOPS/device", rate, speed.flops_per_second_per_device, "TFLOP/s")
        peak = number(scenario.hardware.peak(scenario.precision))
        yield Row("MFU", f"{number(speed.flops_per_second_per_device)} / {peak}", speed.mfu, "%")

    def tables(self) -> Iterator[tuple[str, list[Row]]]:
        """Every table with its introduction."""
        moment = self.estimate.memory.moment
        yield (
            f"Memory is bound by rank {self.stage}, at the moment *{moment}*. What lives through the step:",
            [*self.state()],
        )
        yield (
            "What one layer saves for one micro batch, and what the rank holds of it at the peak:",
            [*self.activations()],
        )
        yield "The rest of that moment:", [*self.moment()]
        yield "The three figures add up from these and from what lies outside the allocator:", [*self.outside()]
        yield "Seconds of one layer for one micro batch, both passes:", [*self.layer_time()]
        yield "Seconds of the step:", [*self.step()]
        yield "Speed:", [*self.speed()]


def _both(seconds: PassSeconds) -> float:
    """Both passes, all parts."""
    return float(sum_parts(seconds.forward)[0] + sum_parts(seconds.backward)[0])


OPERATIONS: dict[type[ast.AST], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: str) -> float:
    """The value of an expression of numbers, `+ - × /` and parentheses."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        if isinstance(node, ast.BinOp):
            return OPERATIONS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"'{expression}' holds more than numbers and + - × /")

    return value(ast.parse(expression.replace("×", "*"), mode="eval").body)


def text() -> str:
    """The block between the markers."""
    example = Example()
    verdict = f"Verdict: `{example.estimate.verdict}`. Coefficients: {example.scenario.coefficients.name}."
    lines = ["```sh", COMMAND, "```", "", verdict, ""]
    for introduction, rows in example.tables():
        lines += [introduction, "", "| term | in numbers | result |", "|---|---|---|"]
        lines += [row.line for row in rows]
        lines.append("")
    return "\n".join(lines)


def replaced(page: str) -> str:
    """The page with a fresh block."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{text()}\n{END}{after}"


def generated() -> Mapping[Path, str]:
    """The page with a fresh block."""
    return {PAGE: replaced(PAGE.read_text(encoding="utf-8"))}
