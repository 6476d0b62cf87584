"""A `pretrain_gpt.py` that trains with the real megatron-core, on a CPU: started by the recipe of `simulate emit`.

megatron-core asks for CUDA devices by name. `OnCpu` and `patch_cuda` answer with the CPU; all the rest (model,
schedules, data parallel buffers, distributed optimizer) is megatron-core's own, without TransformerEngine and Apex.
Arguments and log have the form of Megatron-LM; its memory report is the bytes of live tensors.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from torch.overrides import TorchFunctionMode

from simulator.lab.trainer.watch import LiveBytes
from simulator.question.units import MIB

CPU = torch.device("cpu")
COUNTED_ITERATIONS = 2
"""Iterations after which memory is reported; from the second on the optimizer has its state."""


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on a CUDA device, and calls CPU tensors by the names of CUDA's."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = CPU
        if func is torch.Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


class _NoTracker:
    """Stands for the random states of CUDA devices: nothing here is random but the first weights."""

    def fork(self, *_names: str) -> AbstractContextManager[None]:
        return nullcontext()


def patch_cuda() -> None:
    """Answer what megatron-core asks of `torch.cuda`."""
    torch.cuda.current_device = lambda: CPU
    torch.cuda.synchronize = lambda *_device: None
    megatron_random._CUDA_RNG_STATE_TRACKER = _NoTracker()
    megatron_random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def arguments() -> argparse.Namespace:
    """The recipe's arguments, as far as this trainer knows them, by Megatron-LM's names."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in (
        *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups", "kv-channels"),
        *("vocab-size", "make-vocab-size-divisible-by", "seq-length", "micro-batch-size", "global-batch-size"),
        *("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"),
        *("train-iters", "log-interval"),
    ):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("attention-dropout", "hidden-dropout"):
        parser.add_argument(f"--{name}", type=float, default=0.1)
    for name in (
        *("group-query-attention", "untie-embeddings-and-output-weights", "swiglu", "disable-bias-linear", "bf16"),
        *("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather", "mock-data"),
    ):
        parser.add_argument(f"--{name}", action="store_true", required=True)
    parser.add_argument("--attention-backend", choices=["unfused"], required=True)
    parser.add_argument("--sequence-parallel", action="store_true")
    args, _ = parser.parse_known_args()
    args.transformer_impl = "local"
    args.world_size = dist.get_world_size()
    args.overlap_grad_reduce = args.overlap_param_gather = False  # needs streams of a CUDA device
    multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    args.padded_vocab_size = -(-(args.vocab_size + 1) // multiple) * multiple
    return args


def say(line: str) -> None:
    """Print a line of the log at once."""
    print(line, flush=True)  # noqa: T201


def show(args: argparse.Namespace) -> None:
    """Print the arguments as Megatron-LM does."""
    say("------------------------ arguments ------------------------")
    for name, value in sorted(vars(args).items()):
        say(f"  {name} {'.' * (48 - len(name))} {value}")
    say("-------------------- end of arguments ---------------------")


def built(args: argparse.Namespace) -> tuple[TransformerConfig, DistributedDataParallel, Any]:
    """The stage of this rank in megatron-core's own wrappers, and its optimizer."""
    config = TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        ffn_hidden_size=args.ffn_hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups,
        kv_channels=args.kv_channels,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=args.attention_dropout,
        hidden_dropout=args.hidden_dropout,
        attention_softmax_in_fp32=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        sequence_parallel=args.sequence_parallel,
        use_cpu_initialization=True,
        finalize_model_grads_func=finalize_model_grads,
        # Kernels of TransformerEngine, Apex or a compiler.
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(normalization="RMSNorm"),
        args.padded_vocab_size,
        args.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    buffers = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    stage = DistributedDataParallel(config, buffers, Float16Module(config, model))
    adam = OptimizerConfig(
        optimizer="adam", lr=1e-3, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    return config, stage, get_megatron_optimizer(adam, [stage])


def forward_step(batches: Iterator[torch.Tensor], model: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """One micro batch through the stage, and what makes its loss of the last stage's output."""

    def mean(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = losses.float().mean()
        return loss, {"lm loss": loss.detach().clone()}

    tokens = next(batches)
    positions = torch.arange(tokens.size(1) - 1).unsqueeze(0)
    return model(tokens[:, :-1], positions, None, labels=tokens[:, 1:]), mean


def train(args: argparse.Namespace, counter: LiveBytes) -> None:
    """Train on the same batch in every step, and log as Megatron-LM does."""
    replicas = dist.get_world_size() // (args.tensor_model_parallel_size * args.pipeline_model_parallel_size)
    micro_batches = args.global_batch_size // (args.micro_batch_size * replicas)
    with counter:
        _, stage, optimizer = built(args)
        shape = (args.micro_batch_size, args.seq_length + 1)
        batches = [torch.randint(0, args.padded_vocab_size, shape) for _ in range(micro_batches)]

        def step() -> list[float]:
            stage.zero_grad_buffer()
            optimizer.zero_grad()
            losses = get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=iter(batches),
                model=[stage],
                num_microbatches=micro_batches,
                seq_length=args.seq_length,
                micro_batch_size=args.micro_batch_size,
            )
            optimizer.step()
            return [float(loss["lm loss"]) for loss in losses]

        iterate(args, step, 1, COUNTED_ITERATIONS)
    report(counter)
    iterate(args, step, COUNTED_ITERATIONS + 1, args.train_iters)


def iterate(args: argparse.Namespace, step: Callable[[], list[float]], first: int, last: int) -> None:
    """Run iterations, and print a line at every log interval; each last stage also prints its losses."""
    dist.barrier()
    started = time.perf_counter()
    for iteration in range(first, last + 1):
        losses = step()
        if losses:
            say(f"[Rank {dist.get_rank()}] iteration {iteration} loss {sum(losses) / len(losses):.6f}")
        if iteration % args.log_interval == 0:
            dist.barrier()
            milliseconds = 1000 * (time.perf_counter() - started) / args.log_interval
            started = time.perf_counter()
            if dist.get_rank() == dist.get_world_size() - 1:
                say(
                    f" [2026-01-01 00:00:00] iteration {iteration:8d}/{args.train_iters:8d} | consumed samples: "
                    f"{iteration * args.global_batch_size:12d} | elapsed time per iteration (ms): {milliseconds:.1f} | "
                    f"learning rate: 1.000000E-03 | global batch size: {args.global_batch_size:5d} | "
                    f"lm loss: {sum(losses) / len(losses):.6E} |"
                )


def report(counter: LiveBytes) -> None:
    """Print the memory of this rank: bytes of live tensors now and at the peak."""
    now, peak = counter.current / MIB, counter.peak / MIB
    say(
        f"[Rank {dist.get_rank()}] (after {COUNTED_ITERATIONS} iterations) memory (MB) | allocated: {now} | "
        f"max allocated: {peak}"
    )


def main() -> None:
    """Train as the arguments say."""
    torch.set_num_threads(1)
    patch_cuda()
    dist.init_process_group("gloo")
    args = arguments()
    if dist.get_rank() == 0:
        show(args)
    parallel_state.initialize_model_parallel(args.tensor_model_parallel_size, args.pipeline_model_parallel_size)
    torch.manual_seed(1)
    with OnCpu():
        train(args, LiveBytes())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
